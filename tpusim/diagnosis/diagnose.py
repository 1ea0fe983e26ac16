"""The front door: a profile against the replay of its own program, or against a plan."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pandas as pd

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError, TpusimError
from tpusim.compiler import Compiled
from tpusim.compiler.hlo.read import read_module
from tpusim.diagnosis.alignment import (
    TIMES,
    after,
    by_instruction,
    known_to_both,
    measured_parts,
    shared_names,
    shared_word,
    shared_words,
    side_by_side,
    with_difference,
)
from tpusim.diagnosis.causes import causes, largest
from tpusim.diagnosis.diagnosis import Diagnosis
from tpusim.diagnosis.finding import Finding
from tpusim.diagnosis.kinds import HOST, IDLE, INPUT, OTHER_PROGRAMS, SLOW_STEPS
from tpusim.diagnosis.measured import MeasuredSteps, measured_steps
from tpusim.diagnosis.predicted import predicted_parts
from tpusim.diagnosis.variation import variation
from tpusim.hardware import Slice, load_chip, parse_slice
from tpusim.hardware.legality import default_shape
from tpusim.profiles import Profile, read_profile
from tpusim.results import PlanResult, ReplayResult, Result
from tpusim.simulation import simulate

LEAST_VARIATION, LEAST_PAUSE = 0.005, 0.02
"""What varies comes first if it is this fraction of the step; pauses that are alike, this one."""

LEAST_COMMON = 0.5
"""The fraction of the measured work that has a prediction, below which a note says so."""

NO_PREDICTION = (
    "{why}, so nothing is predicted: the parts are measured, and it is unknown which of them are "
    "slow; give the plan of the run, or the compiled program (prediction=)"
)
IN_WORDS = {IDLE: "idle time within steps", OTHER_PROGRAMS: "time in other programs"}
ONE_STEP = "one execution a device: how steps vary, and the time between them, are unknown"


@checked_call
def diagnose(
    profile: Profile | str | Path,
    prediction: Result | Compiled | None = None,
    *,
    pod: Slice | str | None = None,
) -> Diagnosis:
    """Return where the steps of a profile and their prediction differ.

    profile: what `read_profile` returns, or its path.
    prediction: a result of a plan or of a compiled program, or the program itself; by default the
        profile's own HLO is replayed, if it has one. With neither, the parts are only measured.
    pod: the slice that ran it; by default as many of the profile's chips as the program is for, in
        the most cube-like shape.

    Raise FileError for a profile that cannot be read, and PlanError for a prediction that is none.
    """
    if not isinstance(profile, Profile):
        profile = read_profile(profile)
    pod = parse_slice(pod) if isinstance(pod, str) else pod
    steps = measured_steps(profile)
    result, why = _predicted(profile, prediction, pod)
    parts, words = _parts(steps, profile, result)
    units = _units(parts, result, words)
    predicted = 0 if result is None else result.timeline.total_ps
    kinds = dict(zip(parts["operation"], parts["kind"], strict=True))
    steps = steps.named(kinds)
    return Diagnosis(
        profile=profile.name,
        program=steps.program.partition("(")[0],
        devices=steps.devices,
        executions=len(steps.executions),
        prediction=_words(result),
        measured_ps=int(parts["measured_ps"].sum()),
        predicted_ps=predicted,
        parts=parts,
        findings=tuple(_findings(steps, parts, units, predicted=result is not None)),
        notes=tuple(dict.fromkeys((*profile.notes, *_notes(profile, steps, result, why, units)))),
    )


def _predicted(
    profile: Profile, prediction: object, pod: Slice | None
) -> tuple[Result | None, str]:
    """Return the prediction, or None and why there is none."""
    if prediction is None:
        try:
            return replayed(profile, pod)
        except TpusimError as error:
            if pod is not None:
                raise
            return None, f"the profile's own program cannot be replayed ({error})"
    if isinstance(prediction, Compiled):
        return simulate(prediction, pod=pod), ""
    if isinstance(prediction, Result):
        if pod is None:
            return prediction, ""
        raise PlanError(f"pod is {pod}, but the result given as prediction has its own; give one")
    raise PlanError(
        f"prediction is {prediction!r:.60}; give the result of ts.simulate(...), or a compiled "
        "program"
    )


def replayed(
    profile: Profile, pod: Slice | None, mesh: Mapping[str, int] | None = None
) -> tuple[ReplayResult | None, str]:
    """Return the replay of a profile's own program, or None and why there is none.

    mesh: axes and sizes that name the groups of its collectives.
    """
    program = profile.program()
    if program is None:
        return None, "the profile has no HLO of its steps"
    if pod is None and not profile.chip:
        return None, "the profile does not state its chip, and no slice is given (pod=, --slice)"
    pod = pod or own_slice(profile, program)
    return simulate(program, pod=pod, mesh=mesh), ""


def own_slice(profile: Profile, program: Compiled) -> Slice:
    """Return the most cube-like slice with as many devices as a program is for."""
    chip = load_chip(profile.chip)
    devices = read_module(program.data, program.name).devices
    return Slice(chip, default_shape(chip.name, -(-devices // chip.devices)))


def _parts(
    steps: MeasuredSteps, profile: Profile, result: Result | None
) -> tuple[pd.DataFrame, set[str]]:
    """Return the parts of both sides, and the words that the names of both have in common."""
    if result is None:
        return with_difference(measured_parts(steps, {})), set()
    if not isinstance(result, PlanResult):
        predicted = predicted_parts(result, steps.transposed)
        return by_instruction(measured_parts(steps, {}), predicted), set()
    predicted = predicted_parts(result)
    measured = measured_parts(steps, dict(result.plan.mesh))
    with suppress(TpusimError):
        named, _ = replayed(profile, result.pod, dict(result.plan.mesh))
        if named is not None:
            measured = by_instruction(measured, predicted_parts(named, steps.transposed))
            measured = measured[measured["measured_ps"] != 0].drop(
                columns=[*TIMES[1:], "predicted_order"]
            )
    return side_by_side(measured, predicted), shared_words(measured, predicted)


def _findings(
    steps: MeasuredSteps, parts: pd.DataFrame, units: pd.DataFrame, *, predicted: bool
) -> Iterator[Finding]:
    step = int(parts["measured_ps"].sum())
    waits = int(parts.loc[parts["kind"].isin((HOST, INPUT)), "predicted_ps"].sum())
    varied = sorted(variation(steps, waits), key=lambda each: -each.picoseconds)
    varied = [each for each in varied if each.picoseconds >= LEAST_VARIATION * step]
    alike = [
        each
        for each in varied
        if each.kind in (HOST, INPUT) and each.picoseconds < LEAST_PAUSE * step
    ]
    yield from (each for each in varied if each not in alike)
    if predicted:
        yield from causes(units, step, int(units["difference_ps"].sum()))
    else:
        yield from largest(units, step)
    yield from alike


def _units(parts: pd.DataFrame, result: Result | None, words: set[str]) -> pd.DataFrame:
    """Return what the causes are looked for in: operations, or what plans and programs share.

    What varies is left out: it has its own findings. words: that the names of both sides have.
    """
    own = parts[~parts["kind"].isin((SLOW_STEPS, HOST, INPUT))]
    if isinstance(result, PlanResult):
        own = known_to_both(own.assign(of=shared_word(own, words)))
        names = shared_names(own)
    else:
        own = own.assign(of=own["line"])
        names = own["kind"] + " `" + own["operation"] + "`" + after(" ({})", own["line"])
    names = names.mask(own["operation"].isin(IN_WORDS), own["operation"].map(IN_WORDS))
    how = dict.fromkeys(("kind", "axis", "bound", "of"), "max") | dict.fromkeys(TIMES, "sum")
    return own.groupby(names, sort=False).agg(how)


def _words(result: Result | None) -> str:
    if result is None:
        return ""
    how = "the replay of" if isinstance(result, ReplayResult) else "the plan of"
    return f"{how} {result.name} on {result.pod}"


def _notes(
    profile: Profile, steps: MeasuredSteps, result: Result | None, why: str, units: pd.DataFrame
) -> Iterator[str]:
    """Yield what is unknown, and what suggests that the two sides are not the same."""
    if steps.executions["gap_ps"].max() < 0:
        yield ONE_STEP
    if result is None:
        yield NO_PREDICTION.format(why=why)
        return
    chip = result.pod.chip.name
    if profile.chip not in ("", chip):
        yield f"the profile is of {profile.chip}, and the prediction of {chip}"
    common = units.loc[units["predicted_ps"] > 0, "measured_ps"].sum()
    if common < LEAST_COMMON * units["measured_ps"].sum():
        share = common / units["measured_ps"].sum()
        yield f"{share:.0%} of the measured work has a prediction: are both of the same program?"
    if isinstance(result, ReplayResult):
        yield from result.remarks
