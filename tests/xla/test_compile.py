"""The TPU compiler on small programs: what comes back, what is kept, what is refused."""

import io
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from extent import thorough

import tpusim as ts
from tpusim.base import CompileError
from tpusim.compiler import compile_apart

pytestmark = [
    pytest.mark.xla,
    pytest.mark.skipif(find_spec("libtpu") is None, reason="needs pip install 'tpusim[xla]'"),
]

if find_spec("jax"):
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

LAYERS, WIDTH, ROWS = 4, 1024, 4096


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path))


def step(weights, x, remat=True):
    def layer(x, w):
        return jnp.tanh(x @ w), None

    def loss(weights, x):
        body = jax.checkpoint(layer) if remat else layer
        return jax.lax.scan(body, x, weights)[0].astype(jnp.float32).sum()

    return weights - jax.grad(loss)(weights, x)


def compiled(slice_="v5e:2x2", mesh=None, rows=ROWS, **options):
    weights = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.bfloat16)
    x = jax.ShapeDtypeStruct((rows, WIDTH), jnp.bfloat16)
    mesh = mesh or {"x": 4}
    options = {"in_shardings": (P(None, "x"), P("x")), "donate": 0, **options}
    return ts.xla.compile(step, weights, x, slice=slice_, mesh=mesh, **options)


def test_a_program_and_what_is_known_of_it() -> None:
    found = compiled()
    assert "is_scheduled=true" in found.hlo.partition("\n")[0]
    assert (found.name, found.slice, found.mesh) == ("step", ts.Slice("v5e", "2x2"), (("x", 4),))
    assert sorted(found.devices) == [(0, x, y, 0, 0) for x in (0, 1) for y in (0, 1)]
    assert {name for name, _ in found.versions} == {"jax", "jaxlib", "libtpu"}
    assert found.seconds > 0
    assert not found.from_cache


def test_memory_is_the_compiler_s_own() -> None:
    weights = LAYERS * WIDTH * WIDTH * 2 // 4
    memory = compiled().memory
    assert memory.exact
    assert memory.arguments == weights + ROWS * WIDTH * 2 // 4
    assert (memory.aliased, memory.outputs) == (weights, 0)
    assert memory.total == memory.arguments + memory.heap
    assert 0 < memory.heap < 2**20
    kept = compiled(donate=()).memory
    assert (kept.aliased, kept.outputs) == (0, weights)


@pytest.mark.parametrize("remat", [True, False])
def test_model_flops_are_counted_without_what_is_recomputed(remat: bool) -> None:
    closed = 3 * 2 * LAYERS * ROWS * WIDTH**2
    other = step if remat else lambda w, x: step(w, x, remat=False)
    assert compiled().model_flops == closed
    assert compiled(without_remat=other).model_flops == closed
    assert compiled(model_flops=5).model_flops == 5


@pytest.mark.parametrize(
    ("slice_", "mesh", "devices"),
    [
        ("v4:2x2x1", {"x": 4}, 4),
        ("v3:2x2", {"x": 8}, 8),
        ("v5e:2x2 x 2", {"dcn_data": 2, "x": 4}, 8),
    ],
)
def test_devices_are_in_the_order_of_the_ids(slice_: str, mesh: dict, devices: int) -> None:
    """A permute from each device to the next of the mesh names ids that follow one another."""

    def turn(x):
        pairs = [(n, (n + 1) % mesh["x"]) for n in range(mesh["x"])]
        return jax.shard_map(
            lambda x: jax.lax.ppermute(x, "x", pairs), in_specs=P("x"), out_specs=P("x")
        )(x)

    x = jax.ShapeDtypeStruct((64, 1024), jnp.float32)
    found = ts.xla.compile(turn, x, slice=slice_, mesh=mesh, in_shardings=P("x"))
    assert len(found.devices) == len(set(found.devices)) == devices
    assert "{0,1}" in found.hlo
    one, other = found.devices[:2]
    assert sum(abs(a - b) for a, b in zip(one, other, strict=True)) == 1
    assert one[0] == other[0]


def test_the_second_time_it_is_read_from_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = compile_apart._child, []

    def counted(*given: Any) -> Any:
        started.append(given)
        return start(*given)

    monkeypatch.setattr(compile_apart, "_child", counted)
    first, second = (compiled() for _ in range(2))
    assert len(started) == 1
    assert (first.from_cache, second.from_cache) == (False, True)
    assert second.hlo == first.hlo
    assert second.memory == first.memory
    assert not compiled(cache=False).from_cache
    assert not compiled(rows=2 * ROWS).from_cache
    assert not compiled("v6e:2x2").from_cache


@pytest.mark.thorough
def test_options_of_the_compiler_make_another_program() -> None:
    """By its estimates a matmul whose tiles may fill three times the VMEM is a fifth quicker."""
    large = jax.ShapeDtypeStruct((8192, 8192), jnp.bfloat16)
    plain, other = (
        ts.xla.compile(jnp.matmul, large, large, slice="v6e:1x1", compiler_options=options)
        for options in (None, {"xla_tpu_scoped_vmem_limit_kib": 98304})
    )
    assert (plain.flags, other.flags) == ((), ("--xla_tpu_scoped_vmem_limit_kib=98304",))
    assert not other.from_cache
    times = [ts.simulate(each, costs="compiler").step_time_s for each in (plain, other)]
    assert times[1] < 0.85 * times[0]


def test_options_of_a_jitted_function_are_the_program_s() -> None:
    wide = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16)
    option = {"xla_tpu_scoped_vmem_limit_kib": "98304"}
    plain, jitted, given = (
        ts.xla.compile(fn, wide, wide, slice="v6e:1x1", **more)
        for fn, more in (
            (jax.jit(jnp.matmul), {}),
            (jax.jit(jnp.matmul, compiler_options=option), {}),
            (jnp.matmul, {"compiler_options": option}),
        )
    )
    assert (plain.from_cache, jitted.from_cache) == (False, False)
    assert plain.flags == ()
    assert jitted.flags == given.flags == ("--xla_tpu_scoped_vmem_limit_kib=98304",)


@pytest.mark.thorough
def test_a_broken_entry_is_compiled_again(tmp_path: Path) -> None:
    first = compiled()
    (entry,) = tmp_path.glob("*.hlo.gz")
    entry.write_bytes(entry.read_bytes()[:1000])
    again = compiled()
    assert not again.from_cache
    assert again.memory == first.memory
    assert compiled().from_cache


def test_what_is_jitted_keeps_its_own_shardings_and_donation() -> None:
    mesh = ts.xla.make_mesh("v5e:2x2", {"x": 4})
    spec = jax.sharding.NamedSharding(mesh, P(None, "x"))
    jitted = jax.jit(step, in_shardings=(spec, None), donate_argnums=0)
    weights = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.bfloat16)
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.bfloat16)
    memory = ts.xla.compile(jitted, weights, x, slice="v5e:2x2", mesh=mesh).memory
    assert memory.aliased == LAYERS * WIDTH * WIDTH * 2 // 4


def test_a_mesh_that_is_made_twice_is_one_mesh() -> None:
    rows = jax.sharding.NamedSharding(ts.xla.make_mesh("v5e:2x2", {"x": 4}), P("x"))
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.bfloat16)
    fn = jax.jit(lambda x: x * 2, in_shardings=rows)
    found = ts.xla.compile(fn, x, slice="v5e:2x2", mesh={"x": 4})
    assert found.memory.arguments == ROWS * WIDTH * 2 // 4


def test_arguments_bring_their_shardings() -> None:
    mesh = ts.xla.make_mesh("v5e:2x2", {"x": 4})
    spec = jax.sharding.NamedSharding(mesh, P(None, "x"))
    weights = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.bfloat16, sharding=spec)
    found = ts.xla.compile(lambda w: w * 2, weights, slice="v5e:2x2", mesh={"x": 4})
    assert found.memory.arguments == LAYERS * WIDTH * WIDTH * 2 // 4


@(
    pytest.mark.parametrize(
        ("options", "sentence"),
        [
            (
                {"rows": 4098},
                r"cuts dimension 0 of an array \(4098, 1024\) into 4 parts, and 4098 is",
            ),
            ({"in_shardings": (P("y"), P("x"))}, "names an axis 'y' that the mesh does not have"),
            ({"in_shardings": (P("x"),)}, "must be a tree prefix of the positional arguments"),
            ({"in_shardings": (P("x", "x"), None)}, "duplicate entries for `x`"),
            (
                {"out_shardings": P(None, None, None, "x")},
                "is for at least 4 dimensions, and its array has 3; leave the others out",
            ),
            ({"mesh": {"x": 8}}, "the mesh has x=8 = 8, but there are 4 devices of v5e:2x2"),
            ({"mesh": {"dcn_x": 2, "x": 2}}, "dcn_x=2 = 2, but there is 1 slice .*axes that start"),
            ({"slice_": "v5e:2x2 x 2"}, "no axis of the mesh runs across them; write one that"),
            (
                {"rows": 2**24, "in_shardings": None},
                r"does not fit v5e:2x2: it needs .* GiB of HBM",
            ),
            (
                {"compiler_options": {"xla_tpu_scoped_vmem": 1}},
                "'xla_tpu_scoped_vmem', which this libtpu does not know; write the name of a flag",
            ),
            (
                {"compiler_options": {"xla_tpu_scoped_vmem_limit_kib": "many"}},
                "the TPU compiler refused it .* parse 'many' into flag xla_tpu_scoped_vmem_limit",
            ),
        ],
    )
    if find_spec("jax")
    else pytest.mark.skip
)
def test_what_cannot_be_compiled_is_one_sentence(options: dict, sentence: str) -> None:
    with pytest.raises(CompileError, match=sentence) as raised:
        compiled(**options)
    assert "\n" not in str(raised.value)


def test_a_mesh_of_another_chip_is_refused() -> None:
    mesh = ts.xla.make_mesh("v6e:2x2", {"x": 4})
    with pytest.raises(CompileError, match=r"other devices than v5e:2x2; .*'v5e:2x2', {'x': 4}"):
        compiled(mesh=mesh)
    larger = ts.xla.make_mesh("v5e:4x4", {"x": 16})
    with pytest.raises(CompileError, match=r"make_mesh\('v5e:2x2', {'data': 4}\)"):
        compiled(mesh=larger)


def test_errors_of_the_function_pass_through() -> None:
    def wrong(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        ts.xla.compile(wrong, 1.0, slice="v5e:1x1")


@pytest.mark.parametrize("platforms", [thorough("cpu"), "", thorough("tpu"), thorough("cuda")])
def test_it_works_whatever_platform_jax_is_told(platforms: str) -> None:
    code = (
        "import jax, tpusim as ts; x = jax.ShapeDtypeStruct((128, 128), 'float32'); "
        "print(len(ts.xla.compile(lambda x: x @ x, x, slice='v5e:1x1').hlo))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={**os.environ, "JAX_PLATFORMS": platforms},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("compiling ") for line in done.stderr.splitlines())
    assert int(done.stdout) > 1000


def test_it_says_what_it_is_doing_when_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    monkeypatch.setattr("sys.stderr", said)
    monkeypatch.setattr("tpusim.compiler.compiling.PROGRESS_DELAY", 0.0)
    compiled()
    assert said.getvalue().startswith("compiling step for v5e:2x2 (4 devices)...\n")
