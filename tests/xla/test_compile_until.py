"""Programs compiled until their schedule are the same as those compiled to the end."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from commands import compilers
from extent import sample

import tpusim as ts
from tpusim.base import CompileError
from tpusim.compiler import Compiled

pytestmark = [
    pytest.mark.xla,
    pytest.mark.skipif(find_spec("libtpu") is None, reason="needs pip install 'tpusim[xla]'"),
]

if find_spec("jax"):
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path))


def step(params, x):
    def layer(x, w):
        return x + jax.nn.silu(x @ w["in"]) @ w["out"], None

    def loss(params, x):
        x = jax.lax.scan(jax.checkpoint(layer), x, params["layers"])[0]
        logits = (x @ params["head"]).astype(jnp.float32)
        return jax.nn.logsumexp(logits, -1).mean()

    value, gradient = jax.value_and_grad(loss)(params, x)
    return jax.tree.map(lambda p, g: p - g.astype(p.dtype), params, gradient), value


def compiled(slice_="v5e:2x2", mesh=None, rows=4096, **options) -> Compiled:
    def shape(*dims):
        return jax.ShapeDtypeStruct(dims, jnp.bfloat16)

    params = {
        "layers": {"in": shape(4, 1024, 4096), "out": shape(4, 4096, 1024)},
        "head": shape(1024, 8192),
    }
    mesh = mesh or {"fsdp": 4}
    tensor = "tensor" if "tensor" in mesh else None
    weights = {
        "layers": {"in": P(None, "fsdp", tensor), "out": P(None, tensor, "fsdp")},
        "head": P("fsdp", tensor),
    }
    batch = P(tuple(axis for axis in mesh if axis != "tensor"))
    options = {"in_shardings": (weights, batch), "donate": 0, **options}
    return ts.xla.compile(step, params, shape(rows, 1024), slice=slice_, mesh=mesh, **options)


def check_equal(part: Compiled, whole: Compiled) -> None:
    assert (part.until, whole.until) == ("schedule", "code")
    assert part.memory == whole.memory
    assert part.model_flops == whole.model_flops
    assert (part.devices, part.mesh, part.flags) == (whole.devices, whole.mesh, whole.flags)
    found, expected = ts.simulate(part), ts.simulate(whole)
    assert found.step_time_s == expected.step_time_s
    assert found.hbm_peak_bytes == expected.hbm_peak_bytes
    assert (found.mfu, found.hfu) == (expected.mfu, expected.hfu)
    for table in (ts.explain_collectives, ts.explain_lines):
        assert str(table(found)) == str(table(expected))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("slice_", "mesh"),
    sample(
        [
            ("v5p:2x2x2", {"fsdp": 4, "tensor": 2}),
            ("v5e:2x2 x 2", {"dcn_data": 2, "fsdp": 4}),
        ],
        2,
    ),
)
def test_step_memory_flops_and_collectives_are_those_of_the_whole(slice_: str, mesh: dict) -> None:
    part = compiled(slice_, mesh, until="schedule")
    check_equal(part, compiled(slice_, mesh))
    with pytest.raises(ts.TpusimError, match="has no cycle estimates"):
        ts.simulate(part, costs="compiler")


@pytest.mark.thorough
def test_code_from_a_process_of_its_own_is_the_same() -> None:
    here, apart = compiled(cache=False), compiled(cache=False, time_limit=600)
    assert replace(apart, seconds=here.seconds) == here
    assert ts.simulate(apart, costs="compiler").step_time_s > 0


def test_each_is_kept_and_the_whole_serves_for_both() -> None:
    kinds = ("schedule", "schedule", "code", "schedule")
    found = [compiled(until=until) for until in kinds]
    assert [each.from_cache for each in found] == [False, True, False, True]
    assert [each.until for each in found] == ["schedule", "schedule", "code", "code"]
    assert found[1].hlo == found[0].hlo


@pytest.mark.parametrize(
    "options",
    [
        {"rows": 2**24},
        {"compiler_options": {"xla_tpu_scoped_vmem": 1}},
        {"compiler_options": {"xla_tpu_scoped_vmem_limit_kib": "many"}},
    ],
)
def test_what_is_refused_is_said_in_the_same_words(options: dict) -> None:
    said = []
    for until in ("code", "schedule"):
        with pytest.raises(CompileError) as raised:
            compiled(until=until, **options)
        said.append(str(raised.value))
    assert said[0] == said[1]


@pytest.mark.thorough
def test_options_of_the_compiler_reach_it() -> None:
    large = jax.ShapeDtypeStruct((8192, 8192), jnp.bfloat16)
    option = {"xla_tpu_scoped_vmem_limit_kib": 98304}
    given = {"slice": "v6e:1x1", "compiler_options": option}
    part, whole = (
        ts.xla.compile(jnp.matmul, large, large, until=until, **given)
        for until in ("schedule", "code")
    )
    assert part.flags == ("--xla_tpu_scoped_vmem_limit_kib=98304",)
    check_equal(part, whole)


def test_an_interrupt_while_it_compiles_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import jax, jax.numpy as jnp, tpusim as ts; x = jax.ShapeDtypeStruct((8192,) * 2, 'f4')\n"
        "def f(x):\n for _ in range(400): x = jnp.tanh(x @ x) @ x\n return x\n"
        "ts.xla.compile(f, x, slice='v5e:1x1', until='schedule')"
    )
    folder = tmp_path / "temporary"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(folder)}
    ) as parent:
        children = compilers(parent, folder)
        parent.send_signal(signal.SIGINT)
    assert parent.returncode != 0
    assert list(folder.iterdir()) == []
    assert not any(Path(f"/proc/{child}").exists() for child in children)
