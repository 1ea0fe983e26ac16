"""The first screen: how fast, how good, whether it fits, its bounds, the best change, the cost."""

from collections.abc import Iterator
from math import floor, log10
from typing import NamedTuple

from tpusim.base.units import format_bytes, format_count, format_seconds
from tpusim.report.html.advice import BestChange
from tpusim.results import Fit, Limit, PlanResult, ReplayResult, Result

MILLION = 1e6

LIMITS_SHOWN, LEAST_LIMIT = 4, 0.01
"""Resources that the first screen names, and the smallest fraction of the step that one bounds."""

VERDICTS = {Fit.FITS: "Yes", Fit.BORDERLINE: "Borderline", Fit.TOO_LARGE: "No"}


class Fact(NamedTuple):
    """A number and its name.

    value: the number with its unit.
    about: its range, or how it is counted.
    """

    name: str
    value: str
    about: str = ""


class Answer(NamedTuple):
    """The answer to a question of the first screen.

    value: the answer in a few words, a number if there is one.
    about: lines on it, such as its range.
    bars: parts of the step, name and fraction.
    settings: what `--set` takes, a text each.
    good: whether the answer is good news; None for neither.
    """

    question: str
    value: str
    about: tuple[str, ...] = ()
    bars: tuple[tuple[str, float], ...] = ()
    settings: tuple[str, ...] = ()
    good: bool | None = None


def answers(
    result: Result, ideal: Result | None, limits: tuple[Limit, ...], best: BestChange | None
) -> list[Answer]:
    """Return the answers of the first screen.

    ideal: the lower bound of a perfect compiler, if there is one.
    limits: what bounds the step, the largest part first.
    best: the best change that was simulated, if any was.
    """
    found = [
        _speed(result),
        _quality(result, ideal),
        _memory(result),
        _bounds(limits),
        _change(best),
        _cost(result),
    ]
    return [answer for answer in found if answer is not None]


def facts(result: Result) -> Iterator[Fact]:
    """Yield further numbers of the step."""
    if isinstance(result, PlanResult):
        count = float(result.model.parameter_count)
        yield Fact("Parameters", format_count(count), f"{count:,.0f}")
        yield Fact("Model FLOP/s per device", f"{result.tflops_per_device:.1f} TFLOP/s")
    yield Fact(
        "Exposed communication", f"{result.exposed_s / result.step_time_s:.1%}", "of the step"
    )
    if isinstance(result, PlanResult) and (watts := result.pod.watts) is not None:
        unit, rate = _throughput(result)
        about = f"at {result.pod.chip.power:g} W per chip"
        yield Fact(f"Energy per million {unit}", _energy(watts * MILLION / rate), about)


def _speed(result: Result) -> Answer:
    if (expected := result.error_range) is not None:
        about = [expected.words(result.step_time_s)]
    elif isinstance(result, ReplayResult):
        about = ["no range: too few compiled programs were measured"]
    else:
        about = ["no range: nothing like it was measured"]
    if isinstance(result, PlanResult):
        unit, rate = _throughput(result)
        about.append(f"{rate:,.0f} {unit} per second")
    return Answer("How fast?", f"{format_seconds(result.step_time_s)} per step", tuple(about))


def _quality(result: Result, ideal: Result | None) -> Answer:
    """Return the MFU beside its range and what published runs reach, or the HFU."""
    if result.mfu is None:
        about = ["The MFU is not known: HLO does not say which FLOPs are the model's."]
        return Answer("How good?", f"HFU {result.hfu:.1%}", tuple(about))
    about = []
    if (ends := result.mfu_range) is not None:
        about.append("{:.1%} to {:.1%}".format(*ends))
    about.append(f"HFU {result.hfu:.1%}, with recomputation")
    if ideal is not None:
        less = 1 - ideal.step_time_s / result.step_time_s
        gain = f"{less:.1%} less" if less > 0 else "no less"
        about.append(f"a perfect compiler: {format_seconds(ideal.step_time_s)}, {gain}")
    return Answer("How good?", f"MFU {result.mfu:.1%}", tuple(about))


def _memory(result: Result) -> Answer:
    need, have = format_bytes(result.hbm_peak_bytes), format_bytes(result.hbm_bytes)
    about = [f"{need} of {have} HBM per device at the peak"]
    if (odds := result.hbm_odds) is not None:
        about.append(odds.counted)
    largest = next(iter(result.memory_bytes.items()), None)
    if largest is not None:
        about.append(f"largest part: {largest[0]}, {format_bytes(largest[1])}")
    good = None if result.fit is Fit.BORDERLINE else result.fit is Fit.FITS
    return Answer("Does it fit?", VERDICTS[result.fit], tuple(about), good=good)


def _bounds(limits: tuple[Limit, ...]) -> Answer | None:
    shown = [each for each in limits if each.share >= LEAST_LIMIT][:LIMITS_SHOWN] or limits[:1]
    if not shown:
        return None
    bars = tuple((each.resource, each.share) for each in shown)
    return Answer("What bounds it?", f"{shown[0].resource}: {shown[0].share:.1%}", bars=bars)


def _change(best: BestChange | None) -> Answer | None:
    if best is None:
        return None
    return Answer(best.question, best.gain, best.about, settings=best.settings)


def _cost(result: Result) -> Answer | None:
    """Return the dollars for a million tokens or examples; None where the chip has no price."""
    rate_usd = result.pod.usd_per_second()
    if rate_usd is None or not isinstance(result, PlanResult):
        return None
    unit, rate = _throughput(result)
    usd = rate_usd * MILLION / rate
    about = []
    if (expected := result.error_range) is not None:
        about.append("{} to {}".format(*map(dollars, expected.of(usd))))
    about.append(f"at {dollars(result.pod.chip.price or 0.0)} per chip-hour")
    return Answer("What does it cost?", f"{dollars(usd)} per million {unit}", tuple(about))


def _throughput(result: PlanResult) -> tuple[str, float]:
    """Return what the model reads, and how many of them all chips read in a second."""
    if result.model.reads_text and result.tokens:
        return "tokens", result.tokens_per_s
    return "examples", result.examples_per_s


def dollars(usd: float) -> str:
    """Return an amount of dollars: with cents, or with two digits where it is less than ten cents.

    >>> dollars(0.4234), dollars(3.2), dollars(1234.5), dollars(0.00001234)
    ('$0.42', '$3.20', '$1,234', '$0.000012')
    """
    if usd >= 100 or usd == 0:
        return f"${usd:,.0f}"
    if usd >= 0.1:
        return f"${usd:.2f}"
    return f"${usd:.{1 - floor(log10(usd))}f}"


def _energy(joules: float) -> str:
    hours, unit = (joules / 3.6e6, "kWh") if joules >= 3.6e5 else (joules / 3600, "Wh")
    return f"{hours:.3g} {unit}"
