"""The changes of a plan that may help against a reason for the length of its step."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tpusim.base.errors import PlanError
from tpusim.graph import POLICIES
from tpusim.hardware import DCN_PREFIX, Placement, Slice, candidates
from tpusim.program import SPLASH
from tpusim.results import PlanResult
from tpusim.results.reason import Reason, ReasonKind
from tpusim.simulation.advice.names_to_save import names_to_save
from tpusim.simulation.advice.plan_changes import input_changes

BLOCKS = (2048, 1024)
"""Queries and keys of larger blocks of attention."""

INTERLEAVED, PARTS = "interleaved", 2
"""The schedule in which a stage has several parts of the model, and how many are tried."""

DATA, FSDP = "data", "fsdp"
"""The axes of replicas, and of the shards of weights."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change of a run that may help.

    what: the change in words.
    keys: of the plan, with other values.
    placement: in place of the run's, for another mesh or the same.
    input_keys: of the input pipeline, with other values.
    pod: the slice in place of the run's.
    """

    what: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    placement: Placement | None = None
    input_keys: Mapping[str, Any] = field(default_factory=dict)
    pod: Slice | None = None


def remedies(reason: Reason, result: PlanResult) -> Iterator[Remedy]:
    """Yield the changes that may help against a reason, in the order in which to try them."""
    yield from _REMEDIES.get(reason.kind, _none)(reason, result)


def _none(reason: Reason, result: PlanResult) -> Iterator[Remedy]:
    yield from ()


def _attention(reason: Reason, result: PlanResult) -> Iterator[Remedy]:
    kernel, length = result.plan.attention_kernel, result.plan.seq_len
    now = min((*kernel.block, *kernel.block_of(backward=True)))
    for side in BLOCKS:
        if now < side <= length and length % side == 0:
            keys = {"attention_block": [side, side], "attention_block_backward": []}
            yield Remedy(f"attention in blocks of {side} x {side}", keys)
    if not kernel.fused and kernel.library == SPLASH:
        yield Remedy("one backward kernel of attention", {"attention_backward": "one-kernel"})


def _larger_microbatch(reason: Reason, result: PlanResult) -> Iterator[Remedy]:
    plan = result.plan
    if plan.microbatches % 2 == 0:
        what = "sequences" if result.model.reads_text else "examples"
        each = f"{2 * plan.microbatch} {what}"
        keys = {"microbatches": plan.microbatches // 2}
        yield Remedy(f"twice the microbatch ({each})", keys)


def _narrow(reason: Reason, result: PlanResult) -> Iterator[Remedy]:
    yield from _larger_microbatch(reason, result)
    for axis in result.plan.active_axes:
        if axis not in (DATA, FSDP) and not axis.startswith(DCN_PREFIX):
            yield from _moved(result, axis, FSDP)


def _collectives(reason: Reason, result: PlanResult) -> Iterator[Remedy]:
    plan = result.plan
    if plan.microbatches > 1 and not plan.reduces_once:
        keys = {"gradient_reduction": "per-step"}
        yield Remedy("gradients reduced per step", keys)
    yield from _larger_microbatch(reason, result)
    for axis in reason.axes:
        if not axis.startswith(DCN_PREFIX):
            yield from _moved(result, axis, DATA if axis == FSDP else FSDP)


def _torus(reason: Reason, result: PlanResult) -> Iterator[Remedy]:
    yield from _placements(reason, result)
    yield from _collectives(reason, result)


def _placements(reason: Reason, result: PlanResult) -> Iterator[Remedy]:
    """Yield placements in which the axes of the reason are on whole dimensions of the torus."""
    try:
        known = candidates(result.pod, result.plan.mesh)
    except PlanError:
        return
    for placement in known:
        then = placement.written
        whole = not any("[" in part for axis in reason.axes for part in then.get(axis, ()))
        if whole and placement != result.placement:
            on = " and ".join(f"{axis} on {','.join(then.get(axis, ()))}" for axis in reason.axes)
            yield Remedy(on, {"placement": then}, placement)


def _moved(result: PlanResult, taken: str, given: str) -> Iterator[Remedy]:
    """Yield the mesh with a factor of 2 moved from one axis to another."""
    mesh = dict(result.plan.mesh)
    if mesh.get(taken, 1) % 2 == 0:
        yield from _meshed(result, mesh | {taken: mesh[taken] // 2, given: 2 * mesh.get(given, 1)})


def _meshed(result: PlanResult, mesh: Mapping[str, int]) -> Iterator[Remedy]:
    """Yield another mesh, on the first of its placements."""
    try:
        placement = candidates(result.pod, mesh)[0]
    except PlanError:
        return
    now = result.plan.mesh
    changed = (f"{axis}={n}" for axis, n in mesh.items() if n != now.get(axis, 1))
    keys = {"mesh": dict(mesh), "placement": placement.written}
    yield Remedy(f"a mesh with {' and '.join(changed)}", keys, placement)


def _bubble(reason: Reason, result: PlanResult) -> Iterator[Remedy]:
    plan = result.plan
    if plan.microbatch % 2 == 0:
        more = 2 * plan.microbatches
        yield Remedy(f"a schedule of {more} microbatches", {"microbatches": more})
    if plan.active_schedule in ("gpipe", "1f1b"):
        keys = {"schedule": INTERLEAVED, "virtual_stages": PARTS}
        yield Remedy(f"an interleaved schedule with {PARTS} parts of the model per stage", keys)


def _recomputation(reason: Reason, result: PlanResult) -> Iterator[Remedy]:
    """Yield names to save, and the policies that save more, the one that saves most first."""
    remat = result.plan.remat
    for names in names_to_save(result):
        yield Remedy(f"keeping {', '.join(names)} in HBM", {"save": [*remat.save, *names]})
    for policy in reversed(POLICIES[POLICIES.index(remat.policy) + 1 :]):
        yield Remedy(f"remat {policy}", {"remat": policy})


def _optimizer(reason: Reason, result: PlanResult) -> Iterator[Remedy]:
    """Yield the mesh whose replicas share the update: all of `data` in `fsdp`."""
    mesh = dict(result.plan.mesh)
    if (replicas := mesh.get(DATA, 1)) > 1:
        yield from _meshed(result, mesh | {DATA: 1, FSDP: replicas * mesh.get(FSDP, 1)})


def _input(reason: Reason, result: PlanResult) -> Iterator[Remedy]:
    """Yield other keys of the input pipeline, those of the stage that is busiest first."""
    if result.input is None:
        return
    for change in input_changes(result.input.given):
        yield Remedy(change.what, input_keys=change.keys)


def _host(reason: Reason, result: PlanResult) -> Iterator[Remedy]:
    remat = result.plan.remat
    if result.plan.optimizer.offload:
        yield Remedy("keeping the optimizer state in HBM", {"offload_optimizer": False})
    if remat.offload:
        kept = [*remat.save, *remat.offload]
        keys = {"save": kept, "offload": []}
        yield Remedy(f"keeping {', '.join(remat.offload)} in HBM", keys)


def _slow_parts(reason: Reason, result: PlanResult) -> Iterator[Remedy]:
    if result.pod.impaired:
        kinds = {"slow": result.pod.slow, "broken": result.pod.broken}
        which = " and ".join(kind for kind, parts in kinds.items() if parts)
        yield Remedy(f"a slice without its {which} parts", pod=result.pod.healthy)


def _warned(reason: Reason, result: PlanResult) -> Iterator[Remedy]:
    """Yield what the warning says to write."""
    for warning in result.warnings():
        if warning.what == reason.because and warning.keys:
            if "mesh" in warning.keys:
                yield from _meshed(result, warning.keys["mesh"])
            else:
                what = f"the change that the warning of {warning.kind} names"
                yield Remedy(what, warning.keys)


_REMEDIES: Mapping[ReasonKind, Callable[[Reason, PlanResult], Iterator[Remedy]]] = {
    ReasonKind.ATTENTION: _attention,
    ReasonKind.NARROW_MATMULS: _narrow,
    ReasonKind.RECOMPUTATION: _recomputation,
    ReasonKind.LAUNCHES: _larger_microbatch,
    ReasonKind.OPTIMIZER: _optimizer,
    ReasonKind.COLLECTIVES: _collectives,
    ReasonKind.TORUS: _torus,
    ReasonKind.DCN: _collectives,
    ReasonKind.BUBBLE: _bubble,
    ReasonKind.INPUT: _input,
    ReasonKind.HOST: _host,
    ReasonKind.SLOW_PARTS: _slow_parts,
    ReasonKind.REPEATED_WORK: _warned,
    ReasonKind.PADDING: _warned,
    ReasonKind.RESHARDING: _warned,
}
