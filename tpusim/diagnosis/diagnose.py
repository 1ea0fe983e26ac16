"""The front door: a profile against the replay of its own program, or against a plan."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pandas as pd

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError, TpusimError, blame
from tpusim.compiler import Compiled
from tpusim.compiler.hlo.read import read_module
from tpusim.diagnosis.alignment import (
    TIMES,
    by_instruction,
    measured_parts,
    operation_names,
    shared_names,
    with_difference,
)
from tpusim.diagnosis.causes import causes, largest
from tpusim.diagnosis.diagnosis import Diagnosis
from tpusim.diagnosis.finding import Finding
from tpusim.diagnosis.kinds import HOST, IDLE, INPUT, OTHER_PROGRAMS, SLOW_STEPS
from tpusim.diagnosis.measured import MeasuredSteps, measured_steps
from tpusim.diagnosis.predicted import predicted_parts
from tpusim.diagnosis.stragglers import measured_stragglers
from tpusim.diagnosis.variation import LEAST_VARIATION, variation
from tpusim.hardware import Slice, load_chip, parse_slice
from tpusim.hardware.legality import default_shape
from tpusim.profiles import Profile, read_profile
from tpusim.profiles.profile import short_name
from tpusim.results import PlanResult, ReplayResult, Result
from tpusim.simulation import simulate
from tpusim.training import Stragglers

LEAST_PAUSE = 0.02
"""Pauses that are alike come first if they are this fraction of the step."""

LEAST_COMMON = 0.5
"""The fraction of the measured work that has a prediction, below which a note says so."""

NO_PREDICTION = (
    "{why}, so nothing is predicted: the parts are measured, and it is unknown which of them are "
    "slow; give the plan of the run, or the compiled program (prediction=)"
)
NO_HLO = "the profile has no HLO of its steps"
IN_WORDS = {IDLE: "idle time within steps", OTHER_PROGRAMS: "time in other programs"}
ONE_STEP = "one execution a device: how steps vary, and the time between them, are unknown"


@checked_call
def diagnose(
    profile: Profile | str | Path,
    prediction: Result | Compiled | None = None,
    *,
    pod: Slice | str | None = None,
) -> Diagnosis:
    """Return the differences between the steps of a profile and their prediction.

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
    with blame(profile.name):
        steps = measured_steps(profile)
    result, why = _predicted(profile, prediction, pod)
    parts = _parts(steps, profile, result)
    units = _units(parts, planned=isinstance(result, PlanResult))
    steps = steps.named(dict(zip(parts["operation"], parts["kind"], strict=True)))
    return Diagnosis(
        profile=profile.name,
        program=short_name(steps.program),
        devices=steps.devices,
        executions=len(steps.executions),
        prediction=_words(result),
        measured_ps=int(parts["measured_ps"].sum()),
        predicted_ps=0 if result is None else result.timeline.total_ps,
        parts=parts,
        findings=tuple(_findings(steps, parts, units, predicted=result is not None)),
        stragglers=measured_stragglers(steps),
        notes=tuple(dict.fromkeys((*profile.notes, *_notes(profile, steps, result, why, units)))),
    )


@checked_call
def stragglers_of(found: Diagnosis | Profile | str | Path) -> Stragglers | None:
    """Return what varies in a profile as the stragglers of a training run; None for none.

    found: a diagnosis, or a profile to diagnose.

    Raise FileError for a profile that cannot be read.
    """
    return (found if isinstance(found, Diagnosis) else diagnose(found)).stragglers


def _predicted(
    profile: Profile, prediction: object, pod: Slice | None
) -> tuple[Result | None, str]:
    """Return the prediction, or None and why there is none."""
    if isinstance(prediction, Compiled):
        return _replay(profile, prediction, pod), ""
    if isinstance(prediction, Result):
        if pod is None:
            return prediction, ""
        raise PlanError(f"pod is {pod}, but the result given as prediction has its own; give one")
    if prediction is not None:
        raise PlanError(
            f"prediction is {prediction!r:.60}; give the result of ts.simulate(...), or a compiled "
            "program"
        )
    try:
        return _own_replay(profile, pod)
    except TpusimError as error:
        if pod is None:
            return None, f"the profile's own program cannot be replayed ({error})"
        with blame(profile.name):
            raise


def _own_replay(
    profile: Profile, pod: Slice | None, mesh: Mapping[str, int] | None = None
) -> tuple[Result | None, str]:
    """Return the replay of a profile's own program, or None and why there is none.

    mesh: axes and sizes that name the groups of its collectives.
    """
    program = profile.program()
    if program is not None and (pod is not None or profile.chip):
        return _replay(profile, program, pod, mesh), ""
    if pod is not None:
        raise PlanError(
            f"{NO_HLO} to replay on {pod}; give the plan of the run, or the compiled program "
            "(prediction=), or leave the slice out"
        )
    if program is None:
        return None, NO_HLO
    return None, "the profile does not state its chip, and no slice is given (pod=, --slice)"


def _replay(
    profile: Profile, program: Compiled, pod: Slice | None, mesh: Mapping[str, int] | None = None
) -> Result:
    pod = pod or program.slice or (own_slice(profile, program) if profile.chip else None)
    return simulate(program, pod=pod, mesh=mesh)


def own_slice(profile: Profile, program: Compiled) -> Slice:
    """Return the most cube-like slice with as many devices as a program is for."""
    chip = load_chip(profile.chip)
    devices = read_module(program.data, program.name).devices
    return Slice(chip, default_shape(chip.name, -(-devices // chip.devices)))


def _parts(steps: MeasuredSteps, profile: Profile, result: Result | None) -> pd.DataFrame:
    """Return the parts of both sides.

    Operations of a plan have other names: kind, axis, phase and layer align the two.
    """
    if result is None:
        return with_difference(measured_parts(steps, {}))
    if not isinstance(result, PlanResult):
        predicted = predicted_parts(result, steps.transposed)
        return by_instruction(measured_parts(steps, {}), predicted)
    mesh = dict(result.plan.mesh)
    measured = measured_parts(steps, mesh)
    with suppress(TpusimError):
        named, _ = _own_replay(profile, result.pod, mesh)
        if named is not None:
            measured = by_instruction(measured, predicted_parts(named, steps.transposed))
            measured = measured[measured["measured_ps"] != 0]
            measured = measured.drop(columns=["predicted_ps", "predicted_order"])
    return with_difference(pd.concat([measured, predicted_parts(result)], ignore_index=True))


def _findings(
    steps: MeasuredSteps, parts: pd.DataFrame, units: pd.DataFrame, *, predicted: bool
) -> Iterator[Finding]:
    step = int(parts["measured_ps"].sum())
    waits = int(parts.loc[parts["kind"].isin((HOST, INPUT)), "predicted_ps"].sum())
    varied = sorted(variation(steps, waits), key=lambda each: -each.picoseconds)
    first: list[Finding] = []
    last: list[Finding] = []
    for each in varied:
        alike = each.kind in (HOST, INPUT) and each.picoseconds < LEAST_PAUSE * step
        if each.picoseconds >= LEAST_VARIATION * step:
            (last if alike else first).append(each)
    yield from first
    if predicted:
        yield from causes(units, step, int(units["difference_ps"].sum()))
    else:
        yield from largest(units, step)
    yield from last


def _units(parts: pd.DataFrame, *, planned: bool) -> pd.DataFrame:
    """Return what the causes are looked for in: operations, or what plans and programs share.

    What varies is left out: it has its own findings.
    """
    own = parts[~parts["kind"].isin((SLOW_STEPS, HOST, INPUT))]
    own, names = shared_names(own, parts) if planned else operation_names(own)
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
    measured = units["measured_ps"].sum()
    if common < LEAST_COMMON * measured:
        share = common / measured
        yield f"{share:.0%} of the measured work has a prediction: are both of the same program?"
    if isinstance(result, ReplayResult):
        yield from result.remarks
