"""Laws of advice, over random plans: each sentence says what a simulation of its own says."""

import random
import re
from functools import cache

import pytest
from extent import seeds
from test_any_plan import PODS, SEVERAL, random_model, random_plan

from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.results import Advice, Change, ChangeKind, Fit, PlanResult
from tpusim.results.proposal import Effort
from tpusim.runfile import changed_plan
from tpusim.simulation import simulate

pytestmark = pytest.mark.usefixtures("advised")

MOST = 10
"""Sentences of one run that are simulated again; of 40 runs, 300 and more."""

WITHIN = 1e-3
"""A sentence prints a tenth of a percent."""

FITS_FIRST = (Fit.FITS, Fit.BORDERLINE, Fit.TOO_LARGE)


@cache
def run_of(seed: int) -> tuple[Transformer, Plan, Slice]:
    rng = random.Random(seed)
    pod = Slice(*rng.choice((*PODS, *SEVERAL)))
    model, plan = random_model(rng), random_plan(rng, pod)
    if rng.random() < 0.3:
        found = simulate(model, plan, pod).placement
        plan = plan.replace(placement=found.written) if found.written else plan
    return model, plan, pod


@cache
def advised(seed: int) -> tuple[PlanResult, Advice]:
    model, plan, pod = run_of(seed)
    result = simulate(model, plan, pod)
    return result, result.advice()


def claim(sentence: str) -> float:
    """The fraction of the time that a sentence says is saved."""
    found = re.search(
        r" (?:(saves|takes) ([\d,.]+)%(?: more)?|changes nothing) \(simulated\)", sentence
    )
    assert found, sentence
    if found[1] is None:
        return 0.0
    return float(found[2]) / 100 * (1 if found[1] == "saves" else -1)


def simulated(seed: int, change: Change) -> PlanResult:
    """The changed run, from the keys that the advice prints."""
    model, plan, _ = run_of(seed)
    if change.kind is not ChangeKind.MACHINE:
        plan = changed_plan(plan, change.settings)
    return simulate(model, plan, change.pod, placement=change.placement)


@pytest.mark.parametrize("seed", seeds(40, default=0))
def test_each_sentence_is_what_a_simulation_says(seed: int) -> None:
    base, advice = advised(seed)
    changes = random.Random(seed).sample(advice.changes, min(MOST, len(advice.changes)))
    assert changes
    for change in changes:
        again = simulated(seed, change)
        examples = again.plan.global_batch / base.plan.global_batch
        saved = 1 - again.step_time_s / examples / base.step_time_s
        assert claim(str(change)) == pytest.approx(saved, abs=WITHIN), change
        assert ("does not fit" in str(change)) == (again.fit is Fit.TOO_LARGE)
        assert again.plan == change.plan


def saved_by(base: PlanResult, again: PlanResult) -> float:
    """The fraction of the time that a changed run saves, for as many examples."""
    examples = again.plan.global_batch / base.plan.global_batch
    return 1 - again.step_time_s / examples / base.step_time_s


@pytest.mark.parametrize("seed", seeds(40, default=1))
def test_each_proposal_is_what_a_simulation_says(seed: int) -> None:
    """All its settings together, and each change on top of those before it."""
    base, advice = advised(seed)
    model, plan, pod = run_of(seed)
    for proposal in advice.proposals:
        again = simulate(model, changed_plan(plan, proposal.settings), pod)
        assert again.plan == proposal.plan
        assert proposal.saves == pytest.approx(saved_by(base, again), abs=WITHIN)
        assert claim(str(proposal)) == pytest.approx(proposal.saves, abs=WITHIN)
        assert again.hbm_peak_bytes == pytest.approx(proposal.hbm_peak_bytes, rel=WITHIN)
        assert proposal.fit is again.fit
        assert sum(part.adds for part in proposal.parts) == pytest.approx(proposal.saves)
        settings, reached = list[str](), 0.0
        for part in proposal.parts if plan.placement is None else ():
            settings += part.settings
            reached += part.adds
            found = simulate(model, changed_plan(plan, settings), pod)
            assert reached == pytest.approx(saved_by(base, found), abs=WITHIN), part


@pytest.mark.parametrize("seed", seeds(40, default=1))
def test_proposals_are_worth_their_effort(seed: int) -> None:
    """Each but the last fits, and one that takes more effort saves more."""
    base, advice = advised(seed)
    effort, saves = -1, 0.0
    *_, last = (*advice.proposals, None)
    fitting = [each for each in advice.proposals if each is not last or each.fit is Fit.FITS]
    for proposal in fitting:
        taken = max(part.effort for part in proposal.parts)
        assert proposal.fit is Fit.FITS
        if base.fit is Fit.FITS:
            assert proposal.saves > saves or taken in (Effort.NUMERICS, Effort.BATCH)
        assert taken > effort
        effort = taken
        saves = proposal.saves if taken < Effort.NUMERICS else saves


@pytest.mark.parametrize("seed", seeds(40, default=1))
def test_the_changes_of_a_kind_are_ranked(seed: int) -> None:
    """What fits is first, then what saves most; only the batch changes the training."""
    base, advice = advised(seed)
    for kind in ChangeKind:
        found = [(FITS_FIRST.index(each.fit), -each.saves) for each in advice.of(kind)]
        assert found == sorted(found)
    for change in advice.changes:
        assert (change.kind is ChangeKind.BATCH) == (
            change.plan is not None and change.plan.global_batch != base.plan.global_batch
        )
        assert (change.pod == base.pod) == (change.kind is not ChangeKind.MACHINE)


@pytest.mark.parametrize("seed", seeds(40, default=1))
def test_links_that_are_faster_along_each_dimension_are_faster_links(seed: int) -> None:
    """One dimension after another, or all at once by the chip's own number."""
    model, plan, pod = run_of(seed)
    placement = simulate(model, plan, pod).placement
    chip, each = pod.chip, pod.chip
    for dim in range(chip.ici_dimensions):
        each = each.with_ici(dim, 2.0)
    whole = chip.replace(ici_bandwidth=2 * chip.ici_bandwidth)
    plan = plan.replace(placement=None)
    steps = [
        simulate(model, plan, Slice(made, str(pod.topology), pod.num_slices), placement=placement)
        for made in (each, whole)
    ]
    one, other = (step.timeline.total_ps for step in steps)
    assert one == pytest.approx(other, rel=1e-6)
