"""The report of a simulated server as one page."""

from collections.abc import Iterator, Mapping

from tpusim.base.plain_text import plain
from tpusim.base.units import JOULES_PER_KWH, format_dollars, format_seconds
from tpusim.report.html.headline import LEAST_LIMIT, LIMITS_SHOWN, VERDICTS, Answer, Fact
from tpusim.report.html.page import drawings, template
from tpusim.results import Fit
from tpusim.results.answers import need_words
from tpusim.serving import NUMBERS, TIMES, ServingResult
from tpusim.serving.result import MILLION, number, step_words

FIGURES = {
    "server": "Requests that wait, sequences that decode and the share of the cache that is taken, "
    "over time",
    "outage": "Requests that wait and TTFT while a replica is lost, and without its loss",
    "requests": "When each of some requests waits, when it is prefilled, and when it decodes",
}
"""The figures of the page, and what each shows."""


GOOD = {Fit.FITS: True, Fit.BORDERLINE: None, Fit.TOO_LARGE: False}


def serving_page(result: ServingResult, figures: Mapping[str, bytes]) -> str:
    """Return the report of a server as one HTML page that needs no other file.

    figures: content by file name; those in SVG are shown.
    """
    return template("serving.html.jinja").render(
        title=plain(result.title),
        chips=result.chips,
        saturated=result.saturated,
        traffic=str(result.traffic),
        answers=list(_answers(result)),
        facts=list(_facts(result)),
        heads=("Time", "p50", "p90", "p95", "p99", "mean", "maximum"),
        times=[(TIMES[key].title, *result.shown_times(key)) for key in TIMES],
        definitions=[
            (each.title, each.unit, each.definition)
            for each in (*TIMES.values(), *NUMBERS.values())
        ],
        plan=str(result.plan),
        engine=result.engine_words,
        notes=result.notes,
        figures=drawings(figures),
        described=FIGURES,
    )


def _answers(result: ServingResult) -> Iterator[Answer]:
    numbers, times = result.metrics.numbers, result.metrics.times
    rates = (
        f"{number(numbers['requests_per_s'])} requests/s",
        f"{number(numbers['input_tokens_per_s'])} tokens/s in",
    )
    speed = f"{number(numbers['output_tokens_per_s'])} tokens/s out"
    yield Answer("How much does it answer?", speed, rates)
    half, most = (format_seconds(each) for each in (times["tpot"].p50, times["tpot"].p99))
    tpot = f"TPOT: median {half}, p99 {most}"
    if result.saturated:
        yield Answer("How fast does it answer?", "saturated", (result.saturation, tpot), good=False)
    else:
        ttft = f"median; p99 {format_seconds(times['ttft'].p99)}"
        value = f"{format_seconds(times['ttft'].p50)} to the first token"
        yield Answer("How fast does it answer?", value, (ttft, tpot))
    fullest = result.fullest
    if fullest is not None:
        cache = f"the cache holds {result.cache_tokens:,} tokens"
        about = (f"{need_words(fullest)}, without the cache", cache)
        yield Answer("Does it fit?", VERDICTS[fullest.fit], about, good=GOOD[fullest.fit])
    bars = [each for each in result.bounds.items() if each[1] >= LEAST_LIMIT][:LIMITS_SHOWN]
    if bars:
        yield Answer("What bounds it?", bars[0][0], ("shares of the time in steps",), tuple(bars))
    if result.cost is not None and result.output_cost is not None:
        value = f"{format_dollars(result.output_cost.usd)} per million output tokens"
        yield Answer("What does it cost?", value, (str(result.cost),))


def _facts(result: ServingResult) -> Iterator[Fact]:
    numbers = result.metrics.numbers
    refused = f"answered; {numbers['refused']:,} refused"
    yield Fact("Requests", f"{result.metrics.requests:,}", refused)
    yield Fact("Duration", format_seconds(result.metrics.duration_s))
    yield Fact("In steps", f"{numbers['utilisation']:.1%}", "of the time")
    yield Fact("Batch", f"{numbers['batch']:,.3g}", "sequences that decode in a step")
    peak = f"of the pages; {numbers['cache_peak']:.1%} at most"
    yield Fact("Cache", f"{numbers['cache_use']:.1%}", peak)
    yield Fact("Preemptions", f"{numbers['preemptions']:,}")
    if result.policy.prefix_cache:
        yield Fact("Prefix cache", f"{numbers['prefix_hit_rate']:.1%}", "of the prompt tokens")
    if (joules := result.energy_j) is not None:
        kwh = joules * MILLION / JOULES_PER_KWH
        yield Fact("Energy", f"{kwh:.3g} kWh", "of the chips per million tokens")
    for head, step in (("Prefill step", result.prefill), ("Decode step", result.decode)):
        if step is not None:
            yield Fact(head, format_seconds(step.step_time_s), step_words(step).partition(": ")[2])
