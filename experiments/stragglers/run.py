"""What stragglers cost, by cause: uneven stages, a slow chip, host pauses, slices that differ.

    python experiments/stragglers/run.py

`S` is the time of a step over that without stragglers (Lin et al., OSDI 2025).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tpusim as ts
from tpusim.program import PassKind
from tpusim.results.stage_uses import StageUse

DECODER = ts.models.Transformer(
    layers=32, embed=2048, mlp=8192, heads=16, vocab=221_184, gated=False
)
"""Its head has 9 times the FLOPs of a layer's matrices, as in the traces of Lin et al."""

PIPELINE = ts.Plan(
    mesh={"stage": 4, "data": 16}, seq_len=4096, global_batch=1024, microbatches=16, schedule="1f1b"
)
SHARDED = ts.Plan(mesh={"dcn_data": 4, "fsdp": 64}, seq_len=4096, global_batch=1024)
PAUSES = {"per_hour": 60, "seconds": 0.5, "lead_s": 0}
CAUSES: Mapping[str, Mapping[str, Any]] = {
    "a chip at 0.8 of its speed, all the time": {
        "chips": {"time_share": 1, "compute": 0.8, "hbm": 0.8}
    },
    "the same, once in 100 days for an hour per chip": {
        "chips": {"per_day": 0.01, "compute": 0.8, "hbm": 0.8}
    },
    "pauses of 0.5 s a minute, each host alone": {"pauses": PAUSES},
    "the same, all hosts at once": {"pauses": {**PAUSES, "synchronised": True}},
    "the same, hidden by a lead of a step": {"pauses": {**PAUSES, "lead_s": None}},
    "speeds of slices that differ by 2 %": {"slices": {"spread": 0.02}},
}

Lengths = Mapping[tuple[int, PassKind], float]
"""Picoseconds of a slot, by stage and pass."""


class UnevenStages(NamedTuple):
    """What a last stage with the loss costs.

    last: its slots of a microbatch, over those of another stage.
    factor: `S` of the slots.
    recovered: share of what they take longer that a last stage of mean slots recovers.
    off: the replay of the slots over their simulation, less 1.
    """

    last: float
    factor: float
    recovered: float
    off: float


def uneven_stages() -> UnevenStages:
    """Simulate the pipeline, and replay its slots with others' lengths."""
    result = ts.simulate(DECODER, PIPELINE, ts.Slice("v5p", "4x4x4"))
    stages = ts.explain_pipeline(result).stages
    last, kinds = len(stages) - 1, (PassKind.FORWARD, PassKind.BACKWARD)
    own = {(use.stage, kind): use.mean_ps(kind) for use in stages for kind in kinds}
    usual = {kind: sum(own[stage, kind] for stage in range(last)) / last for kind in kinds}
    mean = {kind: (usual[kind] * last + own[last, kind]) / (last + 1) for kind in kinds}
    fixed = {**own, **{(last, kind): mean[kind] for kind in kinds}}
    ideal = {(stage, kind): mean[kind] for stage, kind in own}
    took, mended, equal = (replay(stages, each) for each in (own, fixed, ideal))
    simulated = max(use.slots[-1].end_ps for use in stages) - stages[0].slots[0].start_ps
    return UnevenStages(
        last=sum(own[last, kind] for kind in kinds) / sum(usual.values()),
        factor=took / equal,
        recovered=min(1.0, (took - mended) / (took - equal)),
        off=took / simulated - 1,
    )


def replay(stages: Sequence[StageUse], lengths: Lengths) -> float:
    """Return when the last slot ends, if each begins when its stage and its operand are ready."""
    ends: dict[tuple[int, PassKind, int], float] = {}
    waiting = {use.stage: [each.slot for each in use.slots] for use in stages}
    free, last = dict.fromkeys(waiting, 0.0), len(stages) - 1
    while any(waiting.values()):
        for stage, slots in waiting.items():
            while slots:
                kind, number = slots[0].kind, slots[0].microbatch
                forward = kind is PassKind.FORWARD
                other = stage - 1 if forward else stage + 1
                if other not in waiting:
                    ready = 0.0 if forward else ends.get((last, PassKind.FORWARD, number))
                else:
                    ready = ends.get((other, kind, number))
                if ready is None:
                    break
                free[stage] = max(free[stage], ready) + lengths[stage, kind]
                ends[stage, kind, number] = free[stage]
                slots.pop(0)
    return max(ends.values())


def causes() -> Iterator[tuple[str, float, float]]:
    """Yield each cause with its `S`, and the share of the steps that meet it or are delayed."""
    from tpusim.training import TrainingRun, train_step

    step = ts.simulate(DECODER, SHARDED, ts.Slice("v5p", "4x4x4", 4))
    for name, asked in CAUSES.items():
        run = TrainingRun(steps=1000, stragglers=ts.Stragglers(**asked, runs=1))
        found = train_step(step, run).stragglers
        assert found is not None
        met = max(found.mix.slow_share if found.asked.chips else 0.0, found.mix.delayed_share)
        yield name, found.factor, 1.0 if found.asked.slices else met


def lines(found: UnevenStages) -> Iterator[str]:
    """Yield the table of the page."""
    yield "| cause | S | wasted | steps that meet it |"
    yield "| --- | ---: | ---: | ---: |"
    for name, factor, met in (("a last stage with the loss", found.factor, 1.0), *causes()):
        yield f"| {name} | {factor:.3f} | {1 - 1 / factor:.1%} | {met:.1%} |"


def main() -> None:
    """Print the table, and the last stage beside the others."""
    found = uneven_stages()
    print("\n".join(lines(found)))
    print(
        f"last stage {found.last:.2f} times the others, {found.recovered:.0%} recovered; replay "
        f"{found.off:+.2%}"
    )


if __name__ == "__main__":
    main()
