"""What a search for what makes a plan fit has found, as ways that `--set` takes."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tpusim.hardware import Slice, chip_names, load_chip
from tpusim.results import PlanResult
from tpusim.results.settings import settings_of
from tpusim.results.ways_to_fit import WayKind, WayToFit
from tpusim.simulation.fit_trials import FitTrials, Trial


def confirmed(trials: FitTrials, found: Iterable[Trial], *, sure: bool = True) -> list[WayToFit]:
    """Return the fastest trial that also fits where a simulation of its own places it.

    sure: only one that fits for sure.
    """
    for trial in sorted(found, key=trials.cost):
        result, keys = _placed(trials, trial)
        if result is None:
            continue
        placed = Trial.of(trial.made, result)
        if placed.fits or (placed.roomy and not sure):
            return [_way(trials, placed, settings_of(keys))]
    return []


def _placed(trials: FitTrials, trial: Trial) -> tuple[PlanResult | None, dict[str, Any]]:
    """Return the result of changed keys on its own placement, and the keys that say so."""
    base, keys = trials.base, trial.keys
    given = base.placement_given
    if "mesh" not in keys and given:
        result: PlanResult | None = trial.result
    else:
        result = trials.simulated(base.plan.replace(**keys), base.pod)
    if result is not None and given:
        if "mesh" in keys or base.plan.placement is None:
            keys = keys | {"placement": result.placement.written}
        result = replace(result, plan=base.plan.replace(**keys))
    return result, keys


def _way(
    trials: FitTrials,
    trial: Trial,
    settings: tuple[str, ...],
    larger: str = "",
) -> WayToFit:
    """Return the way of a trial. larger: its larger slice in words, if it has one."""
    result, kinds = trial.result, {made.move.kind for made in trial.made}
    kinds |= {WayKind.CHIPS} if larger else set()
    whats = (larger, *(made.option.what for made in trial.made))
    return WayToFit(
        kinds=tuple(sorted(kinds)),
        what=tuple(what for what in whats if what),
        settings=settings,
        plan=result.plan,
        pod=result.pod,
        fit=result.fit,
        odds=result.hbm_odds,
        before_s=trials.base.step_time_s,
        step_time_s=result.step_time_s,
        hbm_peak_bytes=result.hbm_peak_bytes,
        hbm_bytes=result.hbm_bytes,
    )


def on_slice(trials: FitTrials, trial: Trial, axis: str) -> WayToFit:
    """Return the way of a trial on a larger slice, whose devices an axis of the mesh got."""
    result = trial.result
    pod, keys = result.pod, trial.keys | {"mesh": dict(result.plan.mesh)}
    if trials.base.plan.placement is not None:
        keys["placement"] = result.placement.written
        result = replace(result, plan=result.plan.replace(placement=keys["placement"]))
    what = f"{pod.chips} chips with {axis}={result.plan.mesh[axis]}"
    settings = (_slice_setting(pod), *settings_of(keys))
    return _way(trials, trial._replace(result=result), settings, what)


def _slice_setting(pod: Slice) -> str:
    """Return a slice's shape as `--set` takes it, in place of its name where it may have one."""
    name, chip = pod.chip.name, pod.chip
    if name in chip_names() and (
        load_chip(name) == chip or pod.clock is not None or chip.calibration
    ):
        return f'slice.name="{name}:{pod.topology}"'
    return f'slice.topology="{pod.topology}"'
