"""Laws of what makes a plan fit, over random plans of all architectures on chips with less HBM.

Each way, put over the plan by its settings as they are printed, gives the numbers that it says, and
fits; batch and model stay as they are.
"""

import random
from functools import cache

import pytest
from extent import seeds
from many_architectures import any_plan

from tpusim.base import TpusimError
from tpusim.hardware import Slice
from tpusim.plan import Plan
from tpusim.results import Fit, PlanResult, WayKind, WaysToFit, WayToFit
from tpusim.runfile import changed_plan
from tpusim.simulation import simulate

FRACTIONS = (0.9, 0.7, 0.5, 0.2)
"""What there is of HBM, over what a plan needs."""

TRAINING_KEYS = {
    "microbatches", "remat", "save", "offload", "offload_optimizer", "scan_layers", "vocab_tiles",
    "loss_labels", "expert_buffer", "weight_update_axes", "gradient_reduction", "placement",
}  # fmt: skip
"""Keys that leave the training as it is."""


@cache
def tight(seed: int) -> tuple[PlanResult, WaysToFit] | None:
    """A plan on a chip whose HBM it does not fit in; None for a plan that is refused."""
    model, plan, pod = any_plan(seed)
    try:
        need = simulate(model, plan, pod).hbm_peak_bytes
    except TpusimError:
        return None
    have = need * random.Random(seed).choice(FRACTIONS)
    result = simulate(model, plan, pod.changed(chip=pod.chip.replace(hbm_usable_bytes=have)))
    ways = result.ways_to_fit()
    assert ways is not None
    return result, ways


def changed(result: PlanResult, way: WayToFit) -> tuple[Plan, Slice]:
    """The plan and the slice that the settings of a way say."""
    plan = [text for text in way.settings if text.startswith("plan.")]
    others = dict(text.split("=", 1) for text in way.settings if text not in plan)
    shape = others.pop("slice.topology", "").strip('"')
    assert not others
    return changed_plan(result.plan, plan), result.pod.changed(shape=shape)


@pytest.mark.parametrize("seed", seeds(300, default=1))
def test_settings_give_what_a_way_says(seed: int) -> None:
    if (found := tight(seed)) is None:
        return
    result, ways = found
    for number, way in enumerate(ways.ways):
        unsure = not number and way.fit is not Fit.FITS
        plan, pod = changed(result, way)
        again = simulate(result.model, plan, pod)
        assert again.fits
        assert again.fit is way.fit is (Fit.BORDERLINE if unsure else Fit.FITS)
        assert (again.hbm_peak_bytes, again.step_time_s) == (way.hbm_peak_bytes, way.step_time_s)
        assert (plan.global_batch, plan.seq_len) == (result.plan.global_batch, result.plan.seq_len)
        assert way.before_s == result.step_time_s


@pytest.mark.parametrize("seed", seeds(300, default=1))
def test_kinds_say_what_changes(seed: int) -> None:
    """There is one way of a kind, the smallest first; of larger kinds those that are faster.

    Ways that more than double the step come after those that do not.
    """
    if (found := tight(seed)) is None:
        return
    result, ways = found
    costly = [way.step_time_s > 2 * result.step_time_s for way in ways.ways]
    assert costly == sorted(costly)
    for group in (True, False):
        kinds = [way.kind for way, each in zip(ways.ways, costly, strict=True) if each is group]
        assert kinds == sorted(kinds)
    by_kind = {way.kind: way for way in sorted(ways.ways, key=lambda way: way.kind)}
    assert len(by_kind) == len(ways.ways)
    steps = [way.step_time_s for kind, way in by_kind.items() if kind is not WayKind.CHIPS]
    assert steps == sorted(steps, reverse=True)
    assert bool(ways.why) is not bool(ways.ways)
    for way in ways.ways:
        keys = {text.partition("=")[0] for text in way.settings}
        assert ("slice.topology" in keys) == (way.kind is WayKind.CHIPS)
        assert ("plan.mesh" in keys) == (way.kind >= WayKind.MESH)
        if way.kind <= WayKind.HOST:
            assert keys <= {f"plan.{key}" for key in TRAINING_KEYS}
        assert (way.pod == result.pod) == (way.kind is not WayKind.CHIPS)
