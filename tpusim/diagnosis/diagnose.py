"""The front door: a profile against the replay of its own program, or against a plan."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.compiler import Compiled
from tpusim.compiler.hlo.read import read_module
from tpusim.diagnosis.alignment import (
    TIMES,
    by_instruction,
    measured_parts,
    side_by_side,
    with_difference,
)
from tpusim.diagnosis.causes import causes
from tpusim.diagnosis.diagnosis import Diagnosis
from tpusim.diagnosis.finding import Finding
from tpusim.diagnosis.layer_timelines import layer_timelines
from tpusim.diagnosis.measured import MeasuredSteps, measured_steps
from tpusim.diagnosis.predicted import predicted_parts
from tpusim.diagnosis.variation import variation
from tpusim.hardware import Slice, load_chip, parse_slice
from tpusim.hardware.legality import default_shape
from tpusim.profiles import Profile, read_profile
from tpusim.results import PlanResult, ReplayResult, Result
from tpusim.simulation import simulate

LEAST_VARIATION = 0.02
"""What varies comes first if it is this fraction of the step, and counts from a tenth of it."""

NO_PREDICTION = (
    "{why}, so nothing is predicted: the parts are measured, and it is unknown which of them are "
    "slow; give the plan of the run, or the compiled program (prediction=)"
)
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
    notes = [*profile.notes]
    if steps.executions["gap_ps"].max() < 0:
        notes.append(ONE_STEP)
    if prediction is not None:
        result = _result(prediction, pod)
    else:
        result, why = replayed(profile, pod)
        notes += [NO_PREDICTION.format(why=why)] if result is None else []
    parts = _parts(steps, result)
    measured, predicted = (int(parts[name].sum()) for name in TIMES[:2])
    kinds = dict(zip(parts["operation"], parts["kind"], strict=True))
    layer, timelines = layer_timelines(profile, steps, result, kinds)
    return Diagnosis(
        profile=profile.name,
        program=steps.program.partition("(")[0],
        devices=steps.devices,
        executions=len(steps.executions),
        prediction=_words(result),
        measured_ps=measured,
        predicted_ps=predicted,
        parts=parts,
        findings=tuple(_findings(steps, parts, result)),
        notes=tuple(dict.fromkeys((*notes, *_remarks(result)))),
        layer=layer,
        timelines=timelines,
    )


def _result(prediction: object, pod: Slice | None) -> Result:
    if isinstance(prediction, Result):
        return prediction
    if isinstance(prediction, Compiled):
        return simulate(prediction, pod=pod)
    raise PlanError(
        f"prediction is {prediction!r:.60}; give the result of ts.simulate(...), or a compiled "
        "program"
    )


def replayed(profile: Profile, pod: Slice | None) -> tuple[ReplayResult | None, str]:
    """Return the replay of a profile's own program, or None and why there is none."""
    program = profile.program()
    if program is None:
        return None, "the profile has no HLO of its steps"
    if pod is None and not profile.chip:
        return None, "the profile does not state its chip, and no slice is given (pod=, --slice)"
    pod = pod or _own_slice(profile, program)
    return simulate(program, pod=pod), ""


def _own_slice(profile: Profile, program: Compiled) -> Slice:
    """Return the most cube-like slice with as many devices as a program is for."""
    chip = load_chip(profile.chip)
    devices = read_module(program.data, program.name).devices
    return Slice(chip, default_shape(chip.name, -(-devices // chip.devices)))


def _parts(steps: MeasuredSteps, result: Result | None) -> pd.DataFrame:
    mesh: Mapping[str, int] = {}
    if isinstance(result, PlanResult):
        mesh = dict(result.plan.mesh)
    measured = measured_parts(steps, mesh)
    if result is None:
        return with_difference(measured)
    predicted = predicted_parts(result)
    if isinstance(result, PlanResult):
        return side_by_side(measured, predicted)
    return by_instruction(measured, predicted)


def _findings(
    steps: MeasuredSteps, parts: pd.DataFrame, result: Result | None
) -> Iterator[Finding]:
    step = int(parts["measured_ps"].sum())
    varied = sorted(variation(steps), key=lambda each: -each.picoseconds)
    early = [each for each in varied if each.picoseconds >= LEAST_VARIATION * step]
    yield from early
    if result is not None:
        yield from causes(*_units(parts, result))
    for each in varied:
        if each not in early and each.picoseconds >= 0.1 * LEAST_VARIATION * step:
            yield each


def _units(parts: pd.DataFrame, result: Result) -> tuple[pd.DataFrame, int, int]:
    """Return what the causes are looked for in: operations, or parts that plans and programs have.

    What varies is left out: it has its own findings.
    """
    own = parts[~parts["kind"].isin(("slow steps", "host"))]
    if isinstance(result, PlanResult):
        keys = own["kind"] + " " + own["axis"] + " " + own["phase"]
    else:
        keys = own["operation"]
    how = {
        **dict.fromkeys(("kind", "axis", "phase", "bound", "line"), "first"),
        **dict.fromkeys(TIMES, "sum"),
    }
    units = own.groupby(keys, sort=False).agg(how)
    return units, int(parts["measured_ps"].sum()), int(own["difference_ps"].sum())


def _words(result: Result | None) -> str:
    if result is None:
        return ""
    how = "the replay of" if isinstance(result, ReplayResult) else "the plan of"
    return f"{how} {result.name} on {result.pod}"


def _remarks(result: Result | None) -> Iterator[str]:
    if isinstance(result, ReplayResult):
        yield from result.remarks
