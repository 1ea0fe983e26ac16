"""Plans beside what the TPU compiler makes of them: it compiles each, and does the same work."""

import json
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from commands import compilers, run
from extent import sample, thorough

import tpusim as ts
from tpusim.compiler import compile_apart

pytestmark = [
    pytest.mark.xla,
    pytest.mark.skipif(
        find_spec("libtpu") is None or find_spec("optax") is None,
        reason="needs pip install 'tpusim[xla]'",
    ),
]

FLAGSHIP = Path(__file__).parents[2] / "experiments" / "bert_480b" / "run.toml"
SIZES = {"layers": 4, "embed": 1024, "mlp": 4096, "heads": 8, "head_dim": 128, "vocab": 32000}
PLAN = {"seq_len": 1024, "global_batch": 64, "mesh": {"fsdp": 16}}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "experts": (
        {"experts": 8, "experts_per_token": 2, "mlp": 2048},
        {"mesh": {"fsdp": 4, "expert": 4}, "capacity_factor": 1.25},
    ),
    "sorted experts": (
        {"experts": 8, "experts_per_token": 2, "mlp": 2048}, {"mesh": {"fsdp": 4, "expert": 4}},
    ),
    "context": ({}, {"mesh": {"fsdp": 4, "context": 4}, "seq_len": 4096, "global_batch": 16}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path / "cache"))


def run_file(folder: Path) -> Path:
    tables = {"slice": {"chip": "v5e", "topology": "4x4"}, "model": SIZES, "plan": PLAN}
    lines = []
    for name, table in tables.items():
        values = (f"{k} = {json.dumps(v).replace(':', ' =')}" for k, v in table.items())
        lines += [f"[{name}]", *(line.replace('"fsdp"', "fsdp") for line in values)]
    file = folder / "run.toml"
    file.write_text("\n".join(lines), "utf-8")
    return file


def test_a_dense_plan_does_the_work_of_its_program_and_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report"
    assert run(["check", str(run_file(tmp_path)), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    facts = json.loads((out / "check.json").read_text("utf-8"))
    assert facts["plan_flops"] == pytest.approx(facts["program_flops"], rel=0.01)
    assert facts["plan_hbm_bytes"] == pytest.approx(facts["program_hbm_bytes"], rel=0.15)
    assert printed.startswith(f"check       {facts['verdict'][:20]}")
    assert (out / "check.png").read_bytes().startswith(b"\x89PNG")
    assert {"check.txt", "differences.csv"} < {file.name for file in out.iterdir()}
    monkeypatch.setattr(compile_apart, "_child", None)  # no compiler starts
    assert run(["check", str(run_file(tmp_path))]) == 0
    words = " ".join(capsys.readouterr().out.split())  # lines break where the seconds end
    assert "now read from the cache" in words


@pytest.mark.parametrize("name", sample(CASES, 3))
def test_experts_and_parts_of_a_sequence_do_the_work_of_their_programs(name: str) -> None:
    sizes, keys = CASES[name]
    made = ts.check(
        ts.models.Transformer(**SIZES | sizes), ts.Plan(**PLAN | keys), ts.Slice("v5e", "4x4")
    )
    found = made.comparison
    assert found.plan_flops == pytest.approx(found.program_flops, rel=0.01)
    assert found.plan_hbm_bytes == pytest.approx(found.program_hbm_bytes, rel=0.25)
    assert found.same_mode_share > 0.5


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("pod", "mesh", "keys"),
    sample(
        [
            (("v6e", "4x4"), {"fsdp": 16}, {"adapter_rank": 16, "microbatches": 2}),
            (("v5e", "4x4"), {"fsdp": 4, "tensor": 4}, {"adapter_rank": 32}),
            (("v5p", "2x2x4"), {"data": 4, "fsdp": 4}, {"trainable": ["wo", "*scale"]}),
        ],
        3,
    ),
)
def test_a_part_of_the_weights_is_trained_as_its_program_trains_it(
    pod: tuple[str, str], mesh: dict[str, int], keys: dict[str, Any]
) -> None:
    """FLOPs are equal, and what is moved: over `tensor`, each gradient alone."""
    given = ts.Plan(**PLAN | {"mesh": mesh, "global_batch": 256} | keys)
    wide = SIZES | {"embed": 2048, "mlp": 8192, "heads": 16}
    found = ts.check(ts.models.Transformer(**wide), given, ts.Slice(*pod)).comparison
    assert found.plan_flops == pytest.approx(found.program_flops, rel=0.001)
    if "tensor" in mesh:
        rows = [r for r in found.collectives if r.when == "backward" and r.axes == ("tensor",)]
    else:
        assert found.plan_hbm_bytes == pytest.approx(found.program_hbm_bytes, rel=0.15)
        rows = [r for r in found.collectives if r.when == "gradient" and "adapter" in r.what]
        assert bool(rows) == ("adapter_rank" in keys)
    planned, compiled = (sum(row.wire_bytes[side] for row in rows) for side in (0, 1))
    assert planned == pytest.approx(compiled, rel=0.02)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("pod", "mesh", "sizes"),
    sample(
        [
            (("v5p", "2x2x4"), {"fsdp": 16}, {"heads": 16}),
            (("v6e", "4x4"), {"fsdp": 16}, {}),
            (("v5e", "4x4"), {"fsdp": 4, "tensor": 4}, {}),
            (("v5p", "2x2x4"), {"fsdp": 16}, {"experts": 16, "experts_per_token": 2, "mlp": 1024}),
        ],
        4,
    ),
)
def test_muon_multiplies_and_moves_what_its_program_does(
    pod: tuple[str, str], mesh: dict[str, int], sizes: dict[str, int]
) -> None:
    """The optimizer's FLOPs are equal, and what it moves within a tenth: gathers, sums, exchanges.

    8 heads over 16 devices are gathered, 16 are exchanged; 16 experts are whole on their devices.
    """
    keys = {"optimizer": "muon", "mesh": mesh, "capacity_factor": 1.25 if "experts" in sizes else 0}
    made = ts.check(ts.models.Transformer(**SIZES | sizes), ts.Plan(**PLAN | keys), ts.Slice(*pod))
    found = made.comparison
    assert found.plan_flops == pytest.approx(found.program_flops, rel=0.001)
    rows = [row.wire_bytes for row in found.collectives if row.when == "optimizer"]
    planned, compiled = map(sum, zip(*rows, strict=True))
    assert planned == pytest.approx(compiled, rel=0.1)
    assert found.plan_hbm_bytes == pytest.approx(
        found.program_hbm_bytes, rel=0.27 if "tensor" in mesh else 0.25
    )


@pytest.mark.thorough
def test_sorted_experts_exchange_the_rows_that_are_sent() -> None:
    """Six times a layer: forward there and back, both again, and two gradients."""
    sizes, keys = CASES["sorted experts"]
    made = ts.check(
        ts.models.Transformer(**SIZES | sizes), ts.Plan(**PLAN | keys), ts.Slice("v5e", "4x4")
    )
    rows = 64 * 1024 // 16 * 2
    expected = 4 * 6 * rows * 1024 * 2 * 3 / 4
    over = [row.wire_bytes for row in made.comparison.collectives if row.axes == ("expert",)]
    planned, compiled = map(sum, zip(*over, strict=True))
    assert planned == pytest.approx(expected, rel=0.01)
    assert compiled == pytest.approx(expected, rel=0.01)


@pytest.mark.thorough
@pytest.mark.parametrize("rounds", sample([1, 2], 2))
def test_a_circular_pipeline_does_the_work_of_its_program(rounds: int) -> None:
    keys = {"mesh": {"stage": 4, "fsdp": 4}, "microbatches": 8, "schedule": "circular"}
    made = ts.check(
        ts.models.Transformer(**SIZES | {"layers": 8}),
        ts.Plan(**PLAN | keys, virtual_stages=rounds),
        ts.Slice("v5e", "4x4"),
    )
    found = made.comparison
    assert found.plan_flops == pytest.approx(found.program_flops, rel=0.01)
    assert found.plan_hbm_bytes == pytest.approx(found.program_hbm_bytes, rel=0.35)
    on_stages = [row for row in found.collectives if row.axes == ("stage",)]
    sent = {
        when: [
            sum(side.kinds.get("collective-permute", 0.0) for side in sides if side)
            for sides in zip(*((row.plan, row.program) for row in rows), strict=True)
        ]
        for when in ("forward", "backward")
        if (rows := [row for row in on_stages if row.when == when])
    }
    assert sent["forward"][0] == pytest.approx(sent["forward"][1], rel=0.01)
    plan, program = sent["backward"]  # what comes round to the first stage returns in two permutes
    assert program == pytest.approx(plan * (1 if rounds == 1 else 4 / 3), rel=0.01)


def collectives(compiled: str, kind: str) -> set[str]:
    """The dtypes of the collectives of a kind."""
    return set(re.findall(rf" = \(?(\w+)\[[^=]* {kind}(?:-start)?\(", compiled))


@pytest.mark.parametrize(
    ("keys", "kind", "dtypes"),
    [
        ({"matmul_dtype": "int8", "gather_dtype": "int8"}, "all-gather", {"s8"}),
        thorough({"gather_dtype": "f32", "grad_dtype": "f32"}, "all-gather", {"u32"}),
        thorough({"reduce_dtype": "f32"}, "collective-permute", {"f32"}),
    ],
)
def test_weights_and_gradients_are_sent_in_their_dtypes(
    keys: dict[str, str], kind: str, dtypes: set[str]
) -> None:
    mesh = {"mesh": {"fsdp": 4, "tensor": 4}}
    made = ts.check(
        ts.models.Transformer(**SIZES), ts.Plan(**PLAN | mesh | keys), ts.Slice("v5e", "4x4")
    )
    text = made.compiled.data.decode()
    assert dtypes <= collectives(text, kind)
    quantised = len(re.findall(r" = s32\[[^=]* convolution\(", text))
    assert (quantised > 20) == ("matmul_dtype" in keys)


@pytest.mark.thorough
def test_the_compiler_is_told_of_a_plan_without_collective_matmuls() -> None:
    model, plan = ts.models.Transformer(**SIZES), ts.Plan(**PLAN)
    made = [
        ts.check(model, one, ts.Slice("v6e", "4x4"))
        for one in (plan, plan.replace(collective_matmul=False))
    ]
    rings = ["collective-permute-start(" in each.compiled.data.decode() for each in made]
    assert rings == [True, False]
    assert all(each.comparison.same_mode_share > 0.9 for each in made)


@pytest.mark.thorough
@pytest.mark.parametrize("remat", sample(["full", "none"], 2))
def test_layers_without_a_scan_take_the_time_of_their_plan(remat: str) -> None:
    """Without a checkpoint the compiler chooses what is kept: a third less time than JAX's choice.

    4096 wide, 14336 in the MLP, as four layers of Llama 3 8B.
    """
    wide = {"layers": 4, "embed": 4096, "mlp": 14336, "heads": 32, "kv_heads": 8, "head_dim": 128}
    model = ts.models.Transformer(name="wide", vocab=32000, attention="flash", **wide)
    plan = ts.Plan(mesh={"fsdp": 16}, seq_len=4096, global_batch=32, remat=remat)
    made = ts.check(model, plan.replace(scan_layers=False), ts.Slice("v6e", "4x4"))
    assert made.plan.step_time_s == pytest.approx(made.program.step_time_s, rel=0.03)
    if remat == "none":
        scanned = ts.simulate(model, plan, ts.Slice("v6e", "4x4"))
        assert made.plan.step_time_s < 0.85 * scanned.step_time_s


@pytest.mark.parametrize(
    ("dtypes", "sent"), [thorough({}, {"bf16"}), ({"gather_dtype": "int8"}, {"s8"})]
)
def test_activations_are_gathered_as_the_plan_says(dtypes: dict[str, str], sent: set[str]) -> None:
    """In the layers, forward and backward, for all three matmuls of each weight."""
    keys = {"mesh": {"fsdp": 4, "tensor": 4}, "rules": {"act_embed": "tensor"}}
    made = ts.check(
        ts.models.Transformer(**SIZES),
        ts.Plan(**PLAN | keys | {"matmul_dtype": "int8"} | dtypes),
        ts.Slice("v5e", "4x4"),
    )
    gathered = re.findall(
        r" = \(?(\w+)\[(?:1,)?16,1024,(?:1024|8,128)\][^=]* all-gather(?:-start)?\(.*while/body",
        made.compiled.data.decode(),
    )
    assert set(gathered) == sent
    plan, program = (each.step_time_s for each in (made.plan, made.program))
    assert plan == pytest.approx(program, rel=0.15)


def test_the_flagship_is_compiled_until_its_schedule() -> None:
    given = ts.read_run(FLAGSHIP)
    made = ts.check(given.model, given.plan, given.pod)
    assert made.compiled.until == "schedule"
    assert made.comparison.agrees
    assert made.comparison.plan_flops == pytest.approx(made.comparison.program_flops, rel=0.01)


@pytest.mark.parametrize("more", [[], ["--full"]])
def test_an_interrupt_while_it_compiles_is_a_sentence_and_leaves_nothing(
    more: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [sys.executable, "-m", "tpusim", "check", str(run_file(tmp_path)), *more]
    with subprocess.Popen(
        [*command, "--out", str(tmp_path / "report")], env={**os.environ, "TMPDIR": str(folder)},
        stderr=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        children = compilers(parent, folder)
        parent.send_signal(signal.SIGINT)
        assert parent.stderr is not None
        said = parent.stderr.read().splitlines()
    assert parent.returncode == 130
    assert said[-1].startswith("error: interrupted")
    assert list(folder.iterdir()) == []
    assert not (tmp_path / "report").exists()
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_a_program_that_the_compiler_refuses_is_compared_like_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both sides say that 16 copies of the weights and their moments are too much."""
    large = ["model.embed=4096", "model.mlp=32768", "plan.mesh={data=16}"]
    settings = [word for each in large for word in ("--set", each)]
    assert run(["check", str(run_file(tmp_path)), *settings, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["refused"], facts["plan_fit"]) == (True, "does not fit")
    assert facts["program_hbm_bytes"] > facts["usable_hbm_bytes"]
    assert facts["plan_hbm_bytes"] == pytest.approx(facts["program_hbm_bytes"], rel=0.1)
    assert facts["program_step_s"] > 0
