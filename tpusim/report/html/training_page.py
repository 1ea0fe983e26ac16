"""The report of a training run as one page."""

from collections.abc import Iterator, Mapping

from tpusim.base.plain_text import plain
from tpusim.base.units import format_amount, format_count, format_dollars, format_seconds
from tpusim.engine.training_loop import Activity
from tpusim.report.html.headline import Answer, Fact, answers, largest_parts
from tpusim.report.html.page import drawings, template
from tpusim.results import PICO, limits
from tpusim.training import (
    BUCKETS,
    FailureSurvey,
    RunAdvice,
    SaveInterval,
    StragglerSurvey,
    TrainingResult,
    duration,
    save_interval,
)
from tpusim.training.failure_advice import ADVICE_HEADS, LEAST_GAIN, NO_CHANGE
from tpusim.training.result import FAILURE_BUCKETS, GOODPUT
from tpusim.training.straggler_survey import WORDS
from tpusim.training.train import DATA_LOADING

CHANGE = "What to change?"
ALL_BUCKETS = {**BUCKETS, **FAILURE_BUCKETS}
STARTS = (
    *(Activity.INITIALIZATION, Activity.PREPARATION),
    *(Activity.COMPILATION, Activity.WARM_UP),
)
"""What a run does before its first step."""


def training_page(
    result: TrainingResult, advice: RunAdvice | None, figures: Mapping[str, bytes]
) -> str:
    """Return the report of a training run as one HTML page that needs no other file.

    advice: simulated changes; without it, the page has the best interval of checkpoints alone.
    figures: content by file name; those in SVG are shown.
    """
    step, found, saves = result.step, result.failures, result.checkpoint
    interval = save_interval(result)
    return template("training.html.jinja").render(
        title=plain(step.title),
        chips=step.pod.chips,
        steps=result.steps,
        step_time=format_seconds(result.step_time_s),
        verdict=str(step.fit),
        wall=duration(result.wall_s.value),
        answers=[*_answers(result, advice, interval)],
        facts=[*_facts(result)],
        failures=found,
        losses=[*_loss_rows(result)],
        causes=[] if found is None else [*_cause_rows(result, found)],
        forms=[] if found is None else [*_closed_forms(result, found)],
        interval=interval,
        stragglers=None if result.stragglers is None else [*_straggler_facts(result.stragglers)],
        gains=[] if result.stragglers is None else [*_gain_rows(result.stragglers)],
        heads=[head[0].upper() + head[1:] for head in ADVICE_HEADS],
        changes=None if advice is None else [*advice.rows()],
        trials=0 if advice is None else len(advice.base.wall_s),
        step_answers=answers(step, None, limits(step), None),
        given=result.run.step_time_s is not None,
        plan=str(step.plan),
        checkpoint="" if saves is None else saves.words,
        notes=result.notes,
        figures=drawings(figures),
    )


def _answers(
    result: TrainingResult, advice: RunAdvice | None, interval: SaveInterval | None
) -> Iterator[Answer]:
    """Yield the answers of the first screen."""
    wall, found = result.wall_s, result.failures
    about = [f"{wall.ends(duration)}, by the ranges of its parts"]
    if found is not None:
        about = [f"{about[0]} and by chance", f"{len(found.wall_s):,} random runs: {found.spread}"]
    yield Answer("How long does it take?", duration(wall.value), tuple(about))
    trained = result.buckets[GOODPUT]
    steps = f"{duration(trained.value)} of steps ({trained.ends(duration)})"
    yield Answer("How much of it is training?", f"Goodput {result.goodput:.1%}", (steps,))
    losses = [(name, spent / wall.value) for name, spent in _losses(result)]
    lost = largest_parts("Where is time lost?", losses, "shares of the wall time")
    if lost is not None:
        yield lost
    if (change := _change(advice, interval)) is not None:
        yield change
    yield _cost(result)


def _change(advice: RunAdvice | None, interval: SaveInterval | None) -> Answer | None:
    """Return the best simulated change, or the best interval; None where neither is known."""
    if advice is not None:
        if not advice.changes:
            return Answer(CHANGE, "Nothing found", (NO_CHANGE,))
        best = advice.changes[0]
        walls = (duration(each.mean_s) for each in (advice.base, best))
        about = ["{} → {}, simulated".format(*walls)]
        if advice.base.cost_usd is not None and best.cost_usd is not None:
            dollars = map(format_dollars, (advice.base.cost_usd, best.cost_usd))
            about.append("{} → {}".format(*dollars))
        return Answer(CHANGE, f"Saves {advice.gain(best):.1%}", tuple(about), settings=best.written)
    if interval is None or interval.expected_s > (1 - LEAST_GAIN) * interval.given_s:
        return None
    walls = (duration(each) for each in (interval.given_s, interval.expected_s))
    about = ["{} → {}, in closed form".format(*walls), "--advise simulates more changes"]
    gain = f"Saves {1 - interval.expected_s / interval.given_s:.1%}"
    settings = tuple(f"{key}={each}" for key, each in interval.settings.items())
    return Answer(CHANGE, gain, tuple(about), settings=settings)


def _cost(result: TrainingResult) -> Answer:
    """Return dollars, or chip-hours where the chip has no price, and energy, with their ranges."""
    cost, hours = result.cost_usd, result.chip_hours
    if cost is None:
        value, about = f"{format_amount(hours.value)} chip-hours", [hours.ends(format_amount)]
    else:
        value = format_dollars(cost.value)
        about = [cost.ends(format_dollars), f"{hours.words(format_amount)} chip-hours"]
    for found, unit in ((result.energy_kwh, "kWh of the chips"), (result.co2_kg, "kg of CO2")):
        if found is not None:
            about.append(f"{found.words(format_amount)} {unit}")
    return Answer("What does it cost?", value, tuple(about))


def _losses(result: TrainingResult) -> list[tuple[str, float]]:
    """Return what the run loses time to and the seconds, the largest first."""
    found = [(name, spent) for bucket in ALL_BUCKETS for name, spent in _parts(result, bucket)]
    return sorted(found, key=lambda each: -each[1])


def _parts(result: TrainingResult, bucket: str) -> list[tuple[str, float]]:
    """Return the activities of a bucket of losses that take any time, the longest first."""
    if bucket == GOODPUT or bucket not in result.buckets:
        return []
    if bucket == DATA_LOADING:
        found = {"waits for input": result.buckets[bucket].value}
    elif result.failures is not None:
        spent = result.failures.spent_s
        found = {str(each): spent.get(each, 0.0) for each in ALL_BUCKETS[bucket]}
    else:
        spent_ps = result.timeline.spent_ps
        found = {str(each): spent_ps.get(each, 0) * PICO for each in ALL_BUCKETS[bucket]}
    return sorted((each for each in found.items() if each[1]), key=lambda each: -each[1])


def _loss_rows(result: TrainingResult) -> Iterator[tuple[str, ...]]:
    """Yield a row for each bucket that has any time, the largest first."""
    ranked = sorted(result.buckets.items(), key=lambda each: -each[1].value)
    for name, each in ranked:
        if name != GOODPUT and each.high:
            parts = _in_words(_parts(result, name))
            share = f"{each.value / result.wall_s.value:.1%}"
            yield parts, duration(each.value), share, each.ends(duration), name


def _in_words(parts: list[tuple[str, float]]) -> str:
    """Return parts of a bucket, with the time of each where there are several."""
    if len(parts) == 1:
        return parts[0][0]
    return ", ".join(f"{part} {duration(spent)}" for part, spent in parts)


def _facts(result: TrainingResult) -> Iterator[Fact]:
    """Yield further numbers of the run."""
    unit = "tokens" if result.step.model.reads_text else "examples"
    yield Fact(unit.capitalize(), format_count(float(result.tokens)), f"{result.tokens:,}")
    starts = sum(result.timeline.spent_ps.get(each, 0) for each in STARTS) * PICO
    yield Fact("Start", duration(starts), "until the first step")
    for name, part in (
        ("Evaluations", result.run.evaluations),
        ("Checkpoints", result.run.checkpoints),
    ):
        if part is not None:
            often = f"{duration(part.every * result.step_time_s)} of steps"
            yield Fact(name, f"every {part.every:,} steps", often)
    if (found := result.failures) is not None:
        often = "never" if found.mttf_s is None else f"one every {duration(found.mttf_s)}"
        yield Fact("Failures per run", f"{found.failures:,.1f}", often)
        yield Fact("Restart", duration(found.restart_s), "from a failure to the next step")
        yield Fact("Steps done again", f"{found.lost_steps:,.0f}", "per run")
        spares = found.asked.spares
        there = "always one there" if spares is None else f"{spares:,} there"
        away = f"at once at most, in 99% of the runs; {there}"
        yield Fact("Spares used", f"{found.most_away:,.0f}", away)
        if found.displaced:
            hours = f"per run, which lose {format_amount(found.displaced_chip_s / 3600)} chip-hours"
            yield Fact("Displaced jobs", f"{found.displaced:,.1f}", hours)
    if (slow := result.stragglers) is not None:
        yield Fact("Stragglers", f"S {slow.factor:.3f}", f"{slow.waste:.1%} of the steps wasted")


def _cause_rows(result: TrainingResult, found: FailureSurvey) -> Iterator[tuple[str, ...]]:
    """Yield a row for each cause of failures, the costliest first."""
    for each in found.causes:
        share = f"{each.lost_s / result.wall_s.value:.1%}"
        yield each.name, each.which, f"{each.failures:,.2f}", duration(each.lost_s), share


def _closed_forms(result: TrainingResult, found: FailureSurvey) -> Iterator[tuple[str, ...]]:
    """Yield what is known in closed form, beside the mean of the random runs."""
    mean = f"{duration(found.mean_s)} ± {duration(found.error_s)}"
    yield "Wall time", duration(found.expected_s), mean
    if found.ettr is not None:
        yield "Useful over wall time (E[ETTR])", f"{found.ettr:.1%}", f"{result.goodput:.1%}"


def _straggler_facts(found: StragglerSurvey) -> Iterator[Fact]:
    mean, ideal = found.mix.ideal_s * found.factor, found.mix.ideal_s
    yield Fact("S", f"{found.factor:.3f}", "mean step over that without stragglers")
    yield Fact("Step", format_seconds(mean), f"in the mean; {format_seconds(ideal)} without")
    yield Fact("Wasted", f"{found.waste:.1%}", "of the time of the steps")
    for share, seconds in found.quantiles_s().items():
        yield Fact(f"{share:.0%} of the steps", format_seconds(seconds), "or less")
    simulated = f"mean of {len(found.simulated):,} random runs of {found.steps:,} steps"
    yield Fact("S, simulated", f"{found.simulated.mean():.3f}", simulated)


def _gain_rows(found: StragglerSurvey) -> Iterator[tuple[str, ...]]:
    """Yield a row for each cause of stragglers: S without it, and what mending it saves."""
    for name, gain in sorted(found.gains().items(), key=lambda each: -each[1]):
        yield WORDS[name], f"{found.without[name]:.3f}", f"{gain:.1%}"
