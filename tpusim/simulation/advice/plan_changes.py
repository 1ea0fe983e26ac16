"""The changes of a plan and its input pipeline that advice tries, each with the change in words."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tpusim.base.errors import PlanError
from tpusim.hardware import DCN_PREFIX, Placement, candidates
from tpusim.plan import NO_CODEC, RATES, STORED_COMPRESSED, Input
from tpusim.results import PlanResult
from tpusim.results.advice import ChangeKind
from tpusim.results.proposal import Effort
from tpusim.simulation.advice.decisions import Decisions, changed_keys
from tpusim.simulation.fit_moves import COMMON_AXES

MOST_PLACEMENTS = 6
"""Other placements of the mesh that are tried."""

CODEC = "zstd"
"""The codec that is tried where records are not compressed."""


@dataclass(frozen=True, slots=True)
class PlanChange:
    """Keys of a plan, or of an input pipeline, with other values.

    what: the change in words.
    placement: in place of the plan's own.
    moves: the mesh changes, so that the placement is searched for anew.
    """

    what: str
    keys: Mapping[str, Any]
    kind: ChangeKind = ChangeKind.PLAN
    placement: Placement | None = None
    moves: bool = False


def plan_changes(result: PlanResult) -> Iterator[PlanChange]:
    """Yield the changes to try, in the order in which the advice's page lists them."""
    yield from _warned(result)
    for choice in Decisions(result.model, result.plan).of(Effort.PROGRAM):
        yield PlanChange(choice.what, changed_keys(result.plan, choice.keys))
    yield from _meshes(result)
    yield from _placements(result)
    yield from _batches(result)


def _warned(result: PlanResult) -> Iterator[PlanChange]:
    """Yield what warnings say to write."""
    for warning in result.warnings():
        if warning.keys:
            what = f"the change that the warning of {warning.kind} names"
            yield PlanChange(what, warning.keys, moves="mesh" in warning.keys)


def _meshes(result: PlanResult) -> Iterator[PlanChange]:
    """Yield the meshes with a factor of 2 moved from one axis to another."""
    mesh = dict(result.plan.mesh)
    axes = [*mesh, *(axis for axis in COMMON_AXES if axis not in mesh)]
    for taken in mesh:
        for given in axes:
            across = taken.startswith(DCN_PREFIX), given.startswith(DCN_PREFIX)
            if given == taken or mesh[taken] % 2 or across[0] != across[1]:
                continue
            moved = mesh | {taken: mesh[taken] // 2, given: 2 * mesh.get(given, 1)}
            what = f"mesh {given}={moved[given]} and {taken}={moved[taken]}"
            yield PlanChange(what, {"mesh": moved}, moves=True)


def _placements(result: PlanResult) -> Iterator[PlanChange]:
    """Yield other placements of the mesh, by the axes that they move."""
    try:
        known = candidates(result.pod, result.plan.mesh)
    except PlanError:
        return
    others = [each for each in known if each != result.placement]
    for placement in others[:MOST_PLACEMENTS]:
        now, then = result.placement.written, placement.written
        moved = [f"{axis} on {','.join(on)}" for axis, on in then.items() if on != now.get(axis)]
        yield PlanChange(" and ".join(moved), {"placement": then}, placement=placement)


def _batches(result: PlanResult) -> Iterator[PlanChange]:
    batch = result.plan.global_batch
    sizes = {"twice": 2 * batch} | ({"half": batch // 2} if batch % 2 == 0 else {})
    for times, size in sizes.items():
        what = f"{times} the global batch ({size})"
        yield PlanChange(what, {"global_batch": size}, ChangeKind.BATCH)


def input_changes(given: Input) -> Iterator[PlanChange]:
    """Yield changes of the keys of an input pipeline: compression, reads, threads, no slow host."""
    if given.compression != NO_CODEC:
        none = dict.fromkeys(("compression_ratio", "decompressors", "decompress_rate"))
        yield PlanChange("records that are not compressed", {"compression": NO_CODEC, **none})
    elif given.kind not in STORED_COMPRESSED:
        ratio = RATES["compression_ratio"][CODEC].value
        yield PlanChange(f"records in {CODEC} ({ratio:.3g} to 1)", {"compression": CODEC})
    yield PlanChange("reads of 4 times the bytes", {"read_bytes": 4 * given.read_bytes})
    yield _doubled("reads at once", "readers", given.readers)
    if given.workers is not None:
        yield _doubled("threads that decode", "workers", given.workers)
    if given.decompressors is not None:
        yield _doubled("threads that decompress", "decompressors", given.decompressors)
    more = max(2 * given.prefetch, 1)
    yield PlanChange(f"{more} batches prefetched", {"prefetch": more})
    if given.slow_host > 1:
        yield PlanChange("a slow host that is as fast as the others", {"slow_host": 1.0})


def _doubled(of: str, key: str, count: int) -> PlanChange:
    return PlanChange(f"twice the {of} ({2 * count})", {key: 2 * count})
