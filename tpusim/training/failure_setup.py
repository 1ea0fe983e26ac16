"""A training run with failures as the engine takes it: their kinds, and the recovery from each."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from tpusim.base.errors import PlanError
from tpusim.base.hashable import hashable
from tpusim.engine.clock import picoseconds
from tpusim.engine.failure_queue import FailureKind, Loss
from tpusim.engine.interrupted_run import Phase, Recovery
from tpusim.engine.training_loop import Activity, LoopTimes
from tpusim.failures import (
    Cause,
    Failures,
    failures_per_second,
    made_of_cubes,
    unit_chips,
    units_of,
)
from tpusim.hardware import Slice
from tpusim.results import PICO, PlanResult
from tpusim.simulation import slowdown
from tpusim.training.parts import Parts, loop_times, run_parts
from tpusim.training.run import TrainingRun

FAULTS = {"cable": "link", "switch": "switch"}
"""The fault of a torus by the unit that fails."""


@dataclass(frozen=True, slots=True)
class FailureSetup:
    """A training run with failures.

    times: of the run without failures.
    kinds: the kinds of failure that it may meet.
    recovery: what follows one.
    causes: the cause of each kind, by name.
    units: units of the machine, by the name that causes give them.
    unit_chips: chips of what is replaced when one fails: a cube or a slice.
    """

    times: LoopTimes
    kinds: tuple[FailureKind, ...]
    recovery: Recovery
    causes: Mapping[str, Cause]
    units: Mapping[str, int]
    unit_chips: int

    @property
    def mttf_s(self) -> float | None:
        """Mean seconds between failures of the run; None if it meets none."""
        rate = sum(1 / kind.between_ps for kind in self.kinds)
        return PICO / rate if rate else None


def run_setup(step: PlanResult, run: TrainingRun, parts: Parts | None = None) -> FailureSetup:
    """Return the run around a step as the engine takes it, with the failures of `run`.

    parts: the seconds of its parts; by default as predicted.

    Raise PlanError for an elastic run of one slice.
    """
    pod, asked = step.pod, run.failures
    assert asked is not None
    if asked.elastic and pod.num_slices == 1:
        raise PlanError(
            f"failures.elastic is true, and {pod} is one slice, without which nothing is left; "
            "write several slices, or elastic = false"
        )
    parts = run_parts(step, run)[0] if parts is None else parts
    units, times = units_of(pod), loop_times(parts, run, run.steps_of(step.plan))
    causes = {
        name: cause
        for name, cause in asked.all_causes.items()
        if failures_per_second(cause, units) > 0
    }
    kinds = tuple(_kind(cause, units, step, asked, times) for cause in causes.values())
    recovery = _recovery(pod, run, asked, parts)
    return FailureSetup(times, kinds, recovery, causes, units, unit_chips(pod))


def _kind(
    cause: Cause, units: Mapping[str, int], step: PlanResult, asked: Failures, times: LoopTimes
) -> FailureKind:
    pod, loss = step.pod, Loss(cause.loses)
    routed = loss is Loss.LINK and asked.routed and pod.slice_rules.reroutes and made_of_cubes(pod)
    replaced = routed and cause.unit == "cable"
    never_short = replaced and asked.spares is None and not asked.elastic
    excess = 0
    if routed and not never_short:
        factor = asked.slowdown or _slowdown(step, cause.unit)
        excess = round(times.step_ps * max(0.0, factor - 1))
    return FailureKind(
        name=cause.name,
        between_ps=1 / (failures_per_second(cause, units) * PICO),
        shape=cause.shape,
        loss=Loss.UNIT if loss is Loss.LINK and not routed else loss,
        detection_ps=picoseconds(cause.detection_s),
        hang_share=cause.hang_share,
        hang_ps=picoseconds(cause.hang_s),
        repair_ps=cause.repair_s / PICO,
        notice_ps=picoseconds(cause.notice_s),
        excess_ps=excess,
        replaced=replaced,
    )


def _recovery(pod: Slice, run: TrainingRun, asked: Failures, parts: Parts) -> Recovery:
    saves, cost = run.checkpoints, parts.checkpoint
    restart_s = parts.initialization_s if asked.restart_s is None else asked.restart_s
    restart: tuple[Phase, ...] = (
        (Activity.INITIALIZATION, picoseconds(restart_s)),
        (Activity.COMPILATION, picoseconds(asked.compile_s)),
        (Activity.WARM_UP, picoseconds(parts.warm_up_s)),
    )
    restore_s, recall_s, peer_s = asked.restore_s, 0.0, None
    if saves is not None and cost is not None:
        restore_s = cost.read_s if restore_s is None else restore_s
        if saves.memory_every is not None:
            recall_s = cost.copy_s
            peer_s = recall_s + cost.exchange_s if saves.peers else None
    return Recovery(
        restart=restart,
        reshard=((Activity.RESHARD, picoseconds(asked.reshard_s)),) if asked.elastic else None,
        replace_ps=picoseconds(asked.replace_s),
        restore_ps=picoseconds(restore_s or 0.0),
        recall_ps=picoseconds(recall_s),
        peer_ps=None if peer_s is None else picoseconds(peer_s),
        spares=asked.spares,
        displaces=asked.displaces,
        slices=pod.num_slices if asked.elastic else 1,
    )


def _slowdown(step: PlanResult, unit: str) -> float:
    """Return the time of a step over that on a healthy torus, with one cable or switch broken."""
    key = hashable((step.model, step.plan, step.pod, unit))
    if key not in _SLOWDOWNS:
        _SLOWDOWNS[key] = slowdown(step.model, step.plan, step.pod, FAULTS[unit]).factor
    return _SLOWDOWNS[key]


_SLOWDOWNS: dict[Hashable, float] = {}
"""Slowdowns by model, plan, slice and unit: each setup of a run asks for those again."""
