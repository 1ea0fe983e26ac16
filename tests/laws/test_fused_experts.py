"""Laws of experts in a fused kernel, which exchanges the rows of tokens by itself."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

import tpusim as ts
from tpusim.base.errors import PlanError
from tpusim.pipeline.serving_step import StepShape
from tpusim.plan import ServingPlan
from tpusim.plan.serving_plan import FUSED_BLOCK, FUSED_BLOCKS
from tpusim.program import Collective, Compute, MatmulWork, VectorWork, walk_ops
from tpusim.results import ServedStep
from tpusim.server import StepLoad
from tpusim.serving.configuration import Configuration
from tpusim.serving.engines import Engine
from tpusim.serving.serve import Server
from tpusim.simulation.serving_run import serve_step

MODEL = ts.models.Transformer(
    layers=2, embed=512, mlp=256, heads=16, vocab=1000, experts=32, experts_per_token=4
)
POD = ts.Slice("v6e", "4x4")
GROUPED = ServingPlan(mesh={"tensor": 16}, expert_parallel=True)
FUSED = replace(GROUPED, moe_backend="fused")
BY_RANK = {"attn_data": 4, "tensor": 4}


def prompt(plan: ServingPlan, tokens: int, pod: ts.Slice = POD, routed: int = 0) -> ServedStep:
    """Return a step of one prompt, of so many tokens over all ranks."""
    load = StepLoad(0, 0, tokens, tokens, tokens * (tokens + 1) // 2)
    shape = StepShape(tokens=tokens // plan.ranks, rows=1, routed=routed)
    return serve_step(MODEL, plan, pod, load, shape)


def exchanges(step: ServedStep) -> Iterator[tuple[str, VectorWork, int]]:
    """Yield the two halves of each layer's exchange: name, work, and how often."""
    for op, times in walk_ops(step.program.body):
        if isinstance(op, Compute) and isinstance(op.work, VectorWork) and op.work.sent:
            yield op.name.rsplit("/", 1)[-1], op.work, times


def collectives(step: ServedStep) -> Counter[str]:
    """Count the collectives of the layers by kind and axes."""
    found: Counter[str] = Counter()
    for op, times in walk_ops(step.program.body):
        if isinstance(op, Collective):
            found[f"{op.kind} {'+'.join(op.axes)}"] += times
    return found


@pytest.mark.parametrize("mesh", [{"tensor": 16}, BY_RANK], ids=["tensor", "ranks"])
@pytest.mark.parametrize("tokens", [64, 1024])
def test_each_choice_of_each_token_crosses_twice(mesh: dict[str, int], tokens: int) -> None:
    """1024 tokens of 4 experts each are 256 rows of 1 KiB to each of 16 devices, and back."""
    rows = tokens * 4 / 16
    found = list(exchanges(prompt(replace(FUSED, mesh=mesh), tokens)))
    assert [(name, times) for name, _, times in found] == [("dispatch", 2), ("combine", 2)]
    for name, work, _ in found:
        assert work.sent == rows
        own = tokens / 16 * 1024 if name == "combine" else 0
        read = 2 if name == "combine" else 1
        assert (work.read_bytes, work.write_bytes) == (read * rows * 1024, rows * 1024 + own)


def test_the_step_grows_by_the_messages() -> None:
    """Two layers, each row there and back: 1024 more rows of a microsecond each."""
    slow, slower = (
        ts.Slice(POD.chip.replace(row_message=seconds), "4x4") for seconds in (100e-6, 101e-6)
    )
    times = [prompt(FUSED, 1024, pod).step_time_s for pod in (slow, slower)]
    assert times[1] - times[0] == pytest.approx(2 * 2 * 256 * 1e-6, rel=1e-6)


def test_experts_in_turn_have_a_least_time_each() -> None:
    """Two layers of two experts a device, whether four tokens reach them or sixty-four."""
    for routed in (4, 64):
        times = [
            prompt(replace(FUSED, expert_s=seconds), 64, routed=routed).step_time_s
            for seconds in (10e-3, 11e-3)
        ]
        assert times[1] - times[0] == pytest.approx(2 * 2 * 1e-3, rel=1e-6)


def test_rows_that_take_longer_than_the_experts_in_turn_hide_them() -> None:
    """1024 rows of a device take 2 ms and two experts 0.2, once for each block of its tokens."""
    plans = FUSED, replace(FUSED, expert_s=100e-6)
    assert len({prompt(plan, 4096).step_time_s for plan in plans}) == 1


def test_each_block_of_tokens_takes_the_experts_in_turn() -> None:
    tokens = 16 * FUSED_BLOCKS["v6e"]
    waits = [
        work.waited
        for count in (tokens, 2 * tokens)
        for name, work, _ in exchanges(prompt(replace(FUSED, expert_s=1e-3), count))
        if name == "dispatch"
    ]
    assert waits == pytest.approx([2e-3, 4e-3])


def test_tokens_that_fill_a_bucket_are_not_sent() -> None:
    rows = [work.sent for routed in (4, 64) for _, work, _ in exchanges(
        prompt(FUSED, 64, routed=routed)
    )]  # fmt: skip
    assert set(rows) == {1.0, 16.0}


def test_sums_become_gathers() -> None:
    """A device has the sums of its own tokens, so what follows the kernel is a gather."""
    grouped, fused = (collectives(prompt(plan, 1024)) for plan in (GROUPED, FUSED))
    assert grouped - fused == {"all-reduce tensor": 2}
    assert fused - grouped == {"all-gather tensor": 2}


def test_ranks_keep_their_tokens() -> None:
    """With data-parallel attention no collective brings tokens of other ranks to the experts."""
    grouped, fused = (
        collectives(prompt(replace(plan, mesh=BY_RANK), 1024)) for plan in (GROUPED, FUSED)
    )
    between = [sum(n for name, n in found.items() if "attn_data" in name) for found in (
        grouped, fused
    )]  # fmt: skip
    assert between[0] - between[1] >= 4
    assert not prompt(replace(FUSED, mesh=BY_RANK), 1024).implicit_reshardings


@pytest.mark.parametrize("chip", ["v6e", "7x"])
def test_weights_are_read_for_each_block(chip: str) -> None:
    pod = ts.Slice(chip, "4x4" if chip == "v6e" else "2x2x2")
    block = FUSED_BLOCKS.get(chip, FUSED_BLOCK)

    def groups(blocks: float) -> float:
        """Return the experts whose weights the first matmul of a layer reads."""
        step = prompt(FUSED, round(16 * block * blocks), pod)
        works = (op.work for op, _ in walk_ops(step.program.body) if isinstance(op, Compute))
        return next(float(w.batch) for w in works if isinstance(w, MatmulWork) and w.ragged)

    assert groups(1) == pytest.approx(2, rel=1e-6)
    assert groups(2) == pytest.approx(4, rel=1e-6)
    assert groups(1.5) == pytest.approx(4, rel=1e-6)


def test_one_device_has_nothing_to_send() -> None:
    one = ServingPlan(mesh={"tensor": 1}, expert_parallel=True)
    pod = ts.Slice("v6e", "1x1")
    times = {
        prompt(replace(one, moe_backend=kind), 64, pod).step_time_s for kind in ("epmoe", "fused")
    }
    assert len(times) == 1


def test_the_smallest_batch_has_two_tokens_for_each_device() -> None:
    engine = Engine.of("sglang-jax", max_model_len=1024)
    sizes = [Server.of(MODEL, plan, POD, engine).steps.buckets.decodes for plan in (GROUPED, FUSED)]
    assert (sizes[0][0], sizes[1][0]) == (1, 32)


def test_a_plan_follows_its_engine() -> None:
    """The backend of a plan is the engine's for its devices, until one is written."""
    engine = Engine.of("sglang-jax")
    keys = {"expert_parallel": True, **engine.followed(8)}
    start = Configuration(pod=POD, plan=ServingPlan(mesh={"attn_data": 8}, **keys), engine=engine)
    assert start.plan.moe_backend == "epmoe"
    wide = start.changed({"mesh": {"tensor": 16}})
    assert wide.plan.moe_backend == "fused"
    assert wide.changed({"expert_parallel": False}).plan.moe_backend == "epmoe"
    assert wide.changed({"moe_backend": "epmoe"}).plan.moe_backend == "epmoe"


def test_no_fused_kernel_is_exported() -> None:
    load = StepLoad(64, 64_000)
    with pytest.raises(PlanError, match="write moe_backend = 'epmoe'"):
        ts.export_serving(MODEL, FUSED, POD, load)
