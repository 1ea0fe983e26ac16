"""The front door for compiled programs: what the TPU compiler made, on the simulated pod."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tpusim.costs import cost_program
from tpusim.engine import Timeline, run
from tpusim.errors import PlanError, nearest
from tpusim.hardware import Placement, Slice
from tpusim.hardware.placement import check_mesh
from tpusim.lines import core_records, operation_of
from tpusim.program import Program, counted
from tpusim.replay_result import COSTS, Origin, ReplayResult, Unknown

if TYPE_CHECKING:
    from tpusim.xla.compiled import Compiled, MemoryReport
    from tpusim.xla.work import Costs

DEFAULT_COSTS: "Costs" = "model"

MOST_RUNS = 3_000_000
"""Operations that are run one by one, without folding: some minutes."""


def replay(
    compiled: "Compiled", pod: Slice | None = None, *, costs: str | None = None,
    mesh: Mapping[str, int] | None = None, model_flops: float | None = None, fold: bool = True,
) -> ReplayResult:  # fmt: skip
    """Run a compiled program once on `pod`, or on the slice that it was compiled for.

    costs: `compiler` takes the cycles that the compiler estimates, `model` the shapes inside each
        fusion; see `replay_result.COSTS`.
    mesh: axes and sizes, where the program does not bring them: its devices are then where JAX
        puts those of such a mesh. It names the groups of collectives.
    model_flops: of a step of all devices, without recomputation; in place of the program's own.
    fold: as in `simulate`.

    Raises PlanError for a slice that is not given or has other devices, for a mesh that does not
    have them, and FileError for what is no HLO of a TPU, or where jaxlib, which reads it, is not
    installed.
    """
    from tpusim.xla.collectives import module_groups
    from tpusim.xla.compiled import check_flops
    from tpusim.xla.laying import places_of
    from tpusim.xla.lower import lowered
    from tpusim.xla.read import read_module

    chosen = costs_of(costs)
    if model_flops is not None:
        check_flops(model_flops)
    if pod is not None and not isinstance(pod, Slice):
        raise PlanError(f"pod is {pod!r}; write a slice, such as ts.Slice('v4', '8x16x16')")
    module = read_module(compiled.data, compiled.name)
    pod = pod or compiled.slice
    if pod is None:
        raise PlanError(
            f"{compiled.name} is for {module.devices} devices and does not say of which slice; "
            "give the one that it was compiled for, such as v4:8x16x16 (--slice v4:8x16x16)"
        )
    if mesh is not None:
        check_mesh(pod, mesh)
    others = tuple(_others(compiled, pod, mesh))
    mesh = mesh or (dict(compiled.mesh) if compiled.mesh else None)
    devices = places_of(module_groups(module), module.devices, pod, compiled.devices or (), mesh)
    laid = lowered(module, pod, devices, mesh, chosen)
    return replayed(
        laid.program, pod, laid.placement, origin=_origin(compiled), costs=chosen,
        fold=fold, unknown=laid.unknown, held=_held(compiled.memory),
        remarks=tuple(dict.fromkeys((*others, *module.notes, *laid.notes))),
        model_flops=compiled.model_flops if model_flops is None else model_flops,
    )  # fmt: skip


def _others(compiled: "Compiled", pod: Slice, mesh: Mapping[str, int] | None) -> Iterator[str]:
    """What the user gives in place of what the program says."""
    if compiled.slice is not None and str(compiled.slice) != str(pod):
        yield (
            f"it was compiled for {compiled.slice}: for {pod} the compiler would make another "
            "program, so compile it again to compare the two"
        )
    if mesh and compiled.mesh and tuple(mesh.items()) != compiled.mesh:
        yield (
            f"it was compiled for the mesh {_shown(dict(compiled.mesh))}, and {_shown(mesh)} names "
            "its groups, as you ask"
        )


def _shown(mesh: Mapping[str, int]) -> str:
    return ",".join(f"{axis}={size}" for axis, size in mesh.items())


def costs_of(choice: str | None) -> "Costs":
    """The choice of costs that a user named, or the usual one. Raises PlanError for any other."""
    for costs in COSTS:
        if costs == (DEFAULT_COSTS if choice is None else choice):
            return costs
    raise PlanError(f"costs is {choice!r}: {nearest(str(choice), COSTS)}")


def replayed(
    program: Program, pod: Slice, placement: Placement, *, origin: Origin,
    costs: "Costs" = DEFAULT_COSTS, fold: bool = True, unknown: Mapping[str, str] | None = None,
    remarks: tuple[str, ...] = (), held: dict[str, float] | None = None,
    model_flops: float | None = None,
) -> ReplayResult:  # fmt: skip
    """The result of a program that one device of the pod runs.

    unknown: why operations are not understood, by name. held: who holds HBM at its peak, where
    the compiler says it. The rest is as in `ReplayResult`. Raises PlanError for model_flops that
    are not above 0, and for loops that are too long to run without folding.
    """
    if not fold:
        _check_length(program)
    timeline = run([cost_program(program, pod, placement)], fold=fold)
    return ReplayResult.of(
        pod, placement, (program,), timeline, held,
        origin=origin, costs=costs, remarks=remarks, model_flops=model_flops,
        unknown=_unknown(timeline, unknown or {}),
    )  # fmt: skip


def _check_length(program: Program) -> None:
    """Raises PlanError for loops that would run, trip by trip, for longer than anyone waits."""
    runs = sum(times for _, times in counted(program.body))
    if runs > MOST_RUNS:
        raise PlanError(
            f"{program.name} runs {runs:,} operations when each trip of its loops is run, and at "
            f"most {MOST_RUNS:,} can be; leave out --no-fold (fold=False), whose result is the same"
        )


def _unknown(timeline: Timeline, why: Mapping[str, str]) -> tuple[Unknown, ...]:
    """The operations that are not understood, with the core's time in each."""
    found = dict.fromkeys(why, 0)
    for record in core_records(timeline):
        if (name := operation_of(record)) in found:
            found[name] += record.total_ps
    unknown = (Unknown(name, why[name], picoseconds) for name, picoseconds in found.items())
    return tuple(sorted(unknown, key=lambda each: -each.picoseconds))


def _origin(compiled: "Compiled") -> Origin:
    """Where a program comes from."""
    report = compiled.memory
    if report is None:
        memory = "the schedule"
    else:
        memory = "the compiler's report" if report.exact else "the compiler's summary"
    return Origin(
        name=compiled.name,
        versions=compiled.versions,
        flags=compiled.flags,
        seconds=compiled.seconds,
        memory=memory,
    )


def _held(report: "MemoryReport | None") -> dict[str, float] | None:
    """Who holds HBM, as the compiler says."""
    if report is None:
        return None
    parts = {"arguments": report.arguments, "outputs": report.outputs, "heap": report.heap}
    parts["other"] = max(0, report.total - sum(parts.values()))
    ranked = sorted(parts.items(), key=lambda part: -part[1])
    return {name: float(nbytes) for name, nbytes in ranked if nbytes}
