"""One run of a compiled program on the simulated pod."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tpusim.base.errors import PlanError, nearest
from tpusim.base.units import format_rate
from tpusim.costs import cost_program
from tpusim.engine import Timeline, run
from tpusim.hardware import Placement, Slice
from tpusim.program import Compute, Program, walk_ops
from tpusim.results import (
    COSTS,
    ProgramOrigin,
    ReplayResult,
    UnknownOperation,
    core_records,
    operation_of,
    step_contents,
)
from tpusim.results.replay_result import FROM_SCHEDULE, UNMENTIONED_SHARE
from tpusim.simulation.advice import replay_advice
from tpusim.simulation.advice.reasons import replay_reasons
from tpusim.simulation.two_costs import far_apart

if TYPE_CHECKING:
    from tpusim.compiler import Compiled, Costs, MemoryReport, TranslatedModule

DEFAULT_COSTS: "Costs" = "model"

MOST_UNFOLDED_OPERATIONS = 3_000_000
"""Operations that are run one by one without folding, at most: some minutes."""


def replay(
    compiled: "Compiled",
    pod: Slice | None = None,
    *,
    costs: str | None = None,
    mesh: Mapping[str, int] | None = None,
    model_flops: float | None = None,
    padding_taps: bool = True,
    fold: bool = True,
) -> ReplayResult:
    """Run a compiled program once on `pod`, or on the slice that it was compiled for.

    Raise PlanError if the slice is missing or has other devices, and if the mesh does not match
    them; FileError for a file that is not HLO of a TPU, and if jaxlib, which reads it, is not
    installed.

    costs: `compiler` takes the cycles that the compiler estimates, `model` the shapes inside each
        fusion; see `replay_result.COSTS`.
    mesh: axes and sizes if the program does not bring them: its devices are then where JAX puts
        those of such a mesh. It names the groups of collectives.
    model_flops: of a step of all devices, without recomputation; in place of the program's own.
    padding_taps: FLOPs count the taps of convolutions on padding, which the array multiplies, as
        plans do; without them they are those of XLA's own analysis.
    fold: as in `simulate`.
    """
    from tpusim.compiler import check_flops, translate_compiled

    if isinstance(pod, Slice) and pod.impaired:
        raise PlanError(
            f"the slice has {pod.impaired}, which are simulated for plans and not for "
            "compiled programs; leave them out"
        )
    chosen = choose_costs(costs)
    if model_flops is not None:
        check_flops(model_flops)
    if pod is not None and not isinstance(pod, Slice):
        raise PlanError(f"pod is {pod!r}; write a slice, such as ts.Slice('v4', '8x16x16')")
    if chosen == "compiler" and compiled.until == "schedule":
        raise PlanError(
            f"{compiled.name} was compiled with until='schedule', so it has no cycle estimates of "
            "the compiler; compile it with until='code', or write costs='model'"
        )
    translated = translate_compiled(compiled, pod, mesh, chosen, padding_taps)
    replaced = _replaced_facts(compiled, translated.pod, mesh)
    apart = far_apart(translated.program, translated.estimated, translated.pod.chip.device)
    own = model_flops is None and not compiled.padding_flops
    padding = _padding_share(
        translated, padding_taps, model_keeps=own and bool(compiled.model_flops)
    )
    result = replay_program(
        translated.program,
        translated.pod,
        translated.placement,
        origin=_origin(compiled),
        costs=chosen,
        fold=fold,
        unknown=translated.unknown,
        remarks=tuple(dict.fromkeys((*replaced, *translated.notes, *padding, *apart))),
        held=_held_bytes(compiled.memory, translated.held),
        model_flops=_own_flops(compiled, padding_taps) if model_flops is None else model_flops,
        unnamed=translated.unnamed,
    )
    return _without_impossible_flops(result)


def _own_flops(compiled: "Compiled", padding_taps: bool) -> float | None:
    """Return the model's FLOPs that were counted when it was compiled."""
    if compiled.model_flops is None or padding_taps:
        return compiled.model_flops
    return compiled.model_flops - compiled.padding_flops


def _padding_share(
    translated: "TranslatedModule", counted: bool, *, model_keeps: bool
) -> Iterator[str]:
    """Yield a remark on taps of convolutions on padding, if there are enough of them.

    counted: the program's FLOPs count them.
    model_keeps: the model's FLOPs come from a file that does not say how many they are.
    """
    padding = total = 0.0
    for op, times in walk_ops(translated.program.body):
        if isinstance(op, Compute):
            skipped = translated.padding_flops.get(op.name, 0.0)
            padding += times * skipped
            total += times * (float(op.flops.total) + (0.0 if counted else skipped))
    if padding < UNMENTIONED_SHARE * total or not padding:
        return
    what = f"taps of convolutions on padding, {padding / total:.1%} of what the array multiplies"
    if counted:
        yield (
            f"FLOPs count {what}; --no-padding-taps (padding_taps=False) leaves them out, as XLA's "
            "own analysis does"
        )
    else:
        kept = "; the model's FLOPs are as its file has them" if model_keeps else ""
        yield f"FLOPs leave out {what}{kept}"


def _without_impossible_flops(result: ReplayResult) -> ReplayResult:
    """Return the result without model FLOPs that its chips cannot compute in the step.

    Narrow matmuls exceed the bf16 peak, and then those that the program executes do so too.
    """
    if result.mfu is None or result.mfu <= max(1.0, result.hfu):
        return result
    said = (
        f"the model's FLOPs are given as {format_rate(result.model_flops or 0, 'FLOP')} per step, "
        f"which is {result.mfu:.3g} times what {result.pod} computes in this step at its bf16 "
        "peak, so no MFU is shown; give those of one step of all devices (--model-flops)"
    )
    return replace(result, model_flops=None, remarks=(*result.remarks, said))


def _replaced_facts(
    compiled: "Compiled", pod: Slice, mesh: Mapping[str, int] | None
) -> Iterator[str]:
    """Yield a remark for each argument that replaces a fact of the program."""
    if compiled.slice is not None and compiled.slice.machine != pod.machine:
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


def choose_costs(choice: str | None) -> "Costs":
    """Return a choice of costs, or the default. Raise PlanError if there is no such choice."""
    for costs in COSTS:
        if costs == (DEFAULT_COSTS if choice is None else choice):
            return costs
    raise PlanError(f"costs is {choice!r}: {nearest(str(choice), COSTS)}")


def replay_program(
    program: Program,
    pod: Slice,
    placement: Placement,
    *,
    origin: ProgramOrigin,
    costs: "Costs" = DEFAULT_COSTS,
    fold: bool = True,
    unknown: Mapping[str, str] | None = None,
    remarks: tuple[str, ...] = (),
    held: dict[str, float] | None = None,
    model_flops: float | None = None,
    unnamed: tuple[str, ...] = (),
) -> ReplayResult:
    """Return the result of a program that one device of the pod runs.

    Raise PlanError for loops that are too long to run without folding, and for a program without
    an operation that takes time, such as one that returns its parameters.

    unknown: the reason that operations are not understood, by name.
    held: HBM at its peak by category, if the compiler says it.
    The rest is as in `ReplayResult`.
    """
    if not fold:
        _check_length(program)
    timeline = run([cost_program(program, pod, placement)], fold=fold)
    if not timeline.total_ps:
        raise PlanError(
            f"{program.name} has no operation that takes time (parameters, constants and tuples "
            "take none), so there is no step to replay"
        )
    return ReplayResult.of(
        pod,
        placement,
        (program,),
        timeline,
        step_contents((program,)),
        held,
        origin=origin,
        costs=costs,
        remarks=remarks,
        model_flops=model_flops,
        unnamed=unnamed,
        unknown=_unknown(timeline, unknown or {}),
        adviser=replay_advice,
        reasoner=replay_reasons,
    )


def _check_length(program: Program) -> None:
    """Raise PlanError for loops that would take too long, iteration by iteration."""
    runs = sum(times for _, times in walk_ops(program.body))
    if runs > MOST_UNFOLDED_OPERATIONS:
        raise PlanError(
            f"{program.name} runs {runs:,} operations when each iteration of its loops is run, and "
            f"at most {MOST_UNFOLDED_OPERATIONS:,} can be; leave out --no-fold (fold=False), whose "
            "result is the same"
        )


def _unknown(timeline: Timeline, why: Mapping[str, str]) -> tuple[UnknownOperation, ...]:
    """Return the operations that are not understood, with the core's time in each."""
    found = dict.fromkeys(why, 0)
    for record in core_records(timeline):
        if (name := operation_of(record)) in found:
            found[name] += record.total_ps
    unknown = (UnknownOperation(name, why[name], found[name]) for name in found)
    return tuple(sorted(unknown, key=lambda each: -each.picoseconds))


def _origin(compiled: "Compiled") -> ProgramOrigin:
    """Return the origin of a program."""
    report = compiled.memory
    memory = FROM_SCHEDULE
    if report is not None:
        memory = "the compiler's report" if report.exact else "the compiler's summary"
    return ProgramOrigin(
        name=compiled.name,
        versions=compiled.versions,
        flags=compiled.flags,
        seconds=compiled.seconds,
        memory=memory,
    )


def _held_bytes(report: "MemoryReport | None", simulated: Mapping[str, float]) -> dict[str, float]:
    """Return HBM by category from the compiler's report, or else as simulated."""
    parts = dict(simulated)
    if report is not None:
        parts = {"arguments": report.arguments, "outputs": report.outputs, "heap": report.heap}
        parts["other"] = max(0, report.total - sum(parts.values()))
    ranked = sorted(parts.items(), key=lambda part: -part[1])
    return {name: float(nbytes) for name, nbytes in ranked if nbytes}
