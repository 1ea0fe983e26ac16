"""Laws of quantised matmuls: bytes, FLOPs and times against the same step in bf16."""

from dataclasses import replace

import pytest
from plans import any_program_of, flat, plan_of, small

from tpusim.base import Phase, PlanError
from tpusim.costs import matmul_seconds
from tpusim.hardware import Slice, load_chip
from tpusim.plan import Plan
from tpusim.program import Compute, MatmulWork, Program, dumps, loads
from tpusim.simulation import simulate

WIDE = {"embed": 8192, "mlp": 32768, "heads": 64, "head_dim": 128, "layers": 4}
"""At a quarter of these dimensions the passes cost more than int8 gains."""
RINGS = plan_of({"fsdp": 16}, matmul_dtype="int8")


def wide_plan(**changes: object) -> Plan:
    return Plan(mesh={"fsdp": 4, "tensor": 4}, seq_len=1024, global_batch=64, **changes)  # type: ignore[arg-type]


def computes(program: Program) -> list[Compute]:
    return [op for op, _ in flat(program.body) if isinstance(op, Compute)]


def matmuls(plan: Plan, chip: str = "v6e", **dims: object) -> dict[str, MatmulWork]:
    program = any_program_of(small(**dims), plan, Slice(chip, "4x4"))
    return {op.name: op.work for op in computes(program) if isinstance(op.work, MatmulWork)}


def role(op: Compute) -> str:
    if op.phase is not Phase.BACKWARD:
        return "forward"
    return "dw" if "/dw" in op.name else "dx"


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ({}, {"forward": "bf16", "dx": "bf16", "dw": "bf16"}),
        ({"matmul_dtype": "int8"}, {"forward": "int8", "dx": "int8", "dw": "int8"}),
        (
            {"matmul_dtype": "int8", "matmul_dtype_dw": "bf16"},
            {"forward": "int8", "dx": "int8", "dw": "bf16"},
        ),
        ({"matmul_dtype_dx": "fp8"}, {"forward": "bf16", "dx": "fp8", "dw": "bf16"}),
    ],
)
def test_each_kind_of_matmul_has_its_dtype(
    dtypes: dict[str, str], expected: dict[str, str]
) -> None:
    program = any_program_of(small(), wide_plan(**dtypes), Slice("v6e", "4x4"))
    seen: dict[str, set[str]] = {"forward": set(), "dx": set(), "dw": set()}
    for op in computes(program):
        if isinstance(op.work, MatmulWork) and "logits" not in op.name:
            seen[role(op)].add(op.work.dtype)
    assert seen == {kind: {dtype} for kind, dtype in expected.items()}


def test_attention_and_the_vocabulary_stay_in_bf16() -> None:
    found = matmuls(wide_plan(matmul_dtype="int8"), attention="dot")
    kept = {name for name, work in found.items() if work.dtype == "bf16"}
    assert {name.removeprefix("bwd/").split("/d")[0] for name in kept} == {
        "layer/scores", "layer/context", "logits",
    }  # fmt: skip


def test_operands_of_half_the_size_take_half_the_bytes() -> None:
    wide, narrow = (matmuls(wide_plan(matmul_dtype=dtype), parallel=True) for dtype in ("", "int8"))
    assert set(wide) == set(narrow)
    halved = [name for name in wide if narrow[name].dtype == "int8"]
    uses_of_wq = {"layer/wq/chunk", "bwd/layer/wq", "bwd/layer/wq/dx", "bwd/layer/wq/dw/chunk"}
    assert uses_of_wq <= set(halved)
    for name in halved:
        before, after = wide[name], narrow[name]
        operands = 2 * before.batch * before.k * (before.m + before.n)
        on_chip = "chunk" in name and before.read_bytes < operands
        operands = before.read_bytes if on_chip else operands
        assert before.read_bytes - after.read_bytes == operands / 2, name
        assert before.write_bytes == after.write_bytes, name


@pytest.mark.parametrize("plan", [RINGS, wide_plan(matmul_dtype="int8")], ids=["rings", "mesh"])
@pytest.mark.parametrize("style", ["plain", "maxtext"])
def test_flops_do_not_change(plan: Plan, style: str) -> None:
    narrow, wide = (
        simulate(small(), plan.replace(style=style, matmul_dtype=dtype), Slice("v6e", "4x4"))
        for dtype in ("int8", "bf16")
    )
    assert narrow.flops == wide.flops


@pytest.mark.parametrize(
    ("chip", "dtype"),
    [("v4", "int8"), ("v5e", "int8"), ("v5p", "int8"), ("v6e", "int8"), ("v5p", "fp8"),
     ("v6e", "fp8"), ("7x", "fp8")],
)  # fmt: skip
def test_a_matmul_takes_between_half_and_all_of_its_time(chip: str, dtype: str) -> None:
    device = load_chip(chip).device
    gain = device.flops[dtype] / device.flops["bf16"]
    for m, k, n in ((8192, 8192, 8192), (4096, 1024, 16384), (512, 4096, 64), (96, 640, 640)):
        wide = MatmulWork(1, m, k, n, "bf16", 2 * (m * k + k * n), 2 * m * n)
        narrow = replace(wide, dtype=dtype, read_bytes=m * k + k * n)
        ratio = matmul_seconds(narrow, device) / matmul_seconds(wide, device)
        assert ratio >= 0.5
        if k % device.side(dtype) == 0 and m % 32 == 0 and n >= device.side(dtype):
            assert ratio <= 1
        if min(m, k, n) >= 8192:
            assert ratio == pytest.approx(1 / gain, rel=0.01)


def test_a_faster_array_never_slows_the_step() -> None:
    plan = wide_plan(matmul_dtype="int8")
    chip = load_chip("v6e")
    fast = Slice(chip.replace(flops={"int8": 2 * chip.flops["int8"]}), "4x4")
    slow_step, fast_step = (
        simulate(small(**WIDE), plan, pod).step_time_s for pod in (Slice(chip, "4x4"), fast)
    )
    assert fast_step < slow_step


@pytest.mark.parametrize(
    ("chip", "dtype"), [("v4", "int8"), ("v5e", "int8"), ("v6e", "int8"), ("v6e", "fp8")]
)
def test_a_quantised_step_takes_more_than_half_the_time(chip: str, dtype: str) -> None:
    """What is not a matmul remains, and the passes come on top: without a gain they only cost."""
    pod = Slice(chip, "2x2x4" if chip == "v4" else "4x4")
    wide, narrow = (
        simulate(small(**WIDE), wide_plan(matmul_dtype=name), pod) for name in ("", dtype)
    )
    assert narrow.step_time_s > wide.step_time_s / 2
    assert narrow.breakdown_s["vector"] > wide.breakdown_s["vector"]
    doubled = pod.chip.flops[dtype] > pod.chip.flops["bf16"]
    assert (narrow.step_time_s < wide.step_time_s) == doubled


@pytest.mark.parametrize(
    ("chip", "key", "dtype", "said"),
    [
        ("7x", "matmul_dtype", "int8", "7x has no int8 matmul; write bf16 or fp8"),
        ("v3", "matmul_dtype_dw", "int8", "v3 has no int8 matmul; write bf16"),
        ("v4", "matmul_dtype_dx", "fp8", "v4 has no fp8 matmul; write bf16 or int8"),
    ],
)
def test_a_chip_without_the_dtype_refuses(chip: str, key: str, dtype: str, said: str) -> None:
    pod = Slice(chip, "4x4" if chip == "v3" else "2x2x4")
    plan = plan_of({"fsdp": pod.chips * pod.chip.devices}, **{key: dtype})
    with pytest.raises(PlanError, match=f"plan.{key} is '{dtype}', but {said}$"):
        simulate(small(), plan, pod)


def test_an_unknown_dtype_is_named() -> None:
    with pytest.raises(PlanError, match=r"plan\.matmul_dtype_dx is 'int9': did you mean 'int8'"):
        wide_plan(matmul_dtype_dx="int9")


@pytest.mark.parametrize("style", ["plain", "maxtext"])
def test_the_program_shows_its_dtypes_and_survives_json(style: str) -> None:
    plan = RINGS.replace(style=style)
    program = any_program_of(small(), plan, Slice("v6e", "4x4"))
    assert loads(dumps(program)) == program
    lines = [line for line in str(program).splitlines() if " matmul " in line]
    assert {line.split("]")[1].split()[0] for line in lines} == {"int8", "bf16"}
    assert "bf16 with int8 matmuls" in str(plan)
    assert "matmuls bf16, dx int8, dw fp8" in str(
        wide_plan(matmul_dtype_dx="int8", matmul_dtype_dw="fp8")
    )


@pytest.mark.parametrize("style", ["plain", "maxtext"])
@pytest.mark.parametrize("plan", [RINGS, wide_plan(matmul_dtype="int8")], ids=["rings", "mesh"])
def test_folded_is_unfolded(plan: Plan, style: str) -> None:
    plan = plan.replace(style=style)
    folded, whole = (
        simulate(small(layers=6), plan, Slice("v6e", "4x4"), fold=fold) for fold in (True, False)
    )
    assert folded.step_time_s == whole.step_time_s
    assert folded.memory_bytes == whole.memory_bytes


@pytest.mark.parametrize("style", ["plain", "maxtext"])
@pytest.mark.parametrize("parallel", [False, True])
def test_every_operand_is_cast_before_it_is_multiplied(style: str, parallel: bool) -> None:
    """Bytes written by the passes: those of each operand once for each way of summing it."""
    plan = RINGS.replace(style=style)
    program = any_program_of(small(parallel=parallel), plan, Slice("v6e", "4x4"))
    passes = [op for op in computes(program) if "quantise" in op.name]
    assert len(passes) == len({op.name for op in passes})
    assert all(op.work.read_bytes == 2 * op.work.write_bytes for op in passes)
    shared = [op for op in passes if op.name.endswith("quantise/layer/attn_norm int8 over embed")]
    assert len(shared) == 1
