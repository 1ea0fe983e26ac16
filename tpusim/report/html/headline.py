"""The first screen: how fast, how good, whether it fits, its bounds, the best change, the cost."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tpusim.base.units import (
    JOULES_PER_KWH,
    format_bytes,
    format_count,
    format_dollars,
    format_seconds,
)
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
        tokens = result.model.reads_text
        rate = result.tokens_per_s if tokens else result.examples_per_s
        about = f"at {result.pod.chip.power:g} W per chip"
        unit = "tokens" if tokens else "examples"
        yield Fact(f"Energy per million {unit}", _energy(watts * MILLION / rate), about)


def _speed(result: Result) -> Answer:
    """Return the step time beside its range, and what the step reads in a second."""
    about = ["no range: " + _no_range(result)]
    if (expected := result.error_range) is not None:
        about = [expected.words(result.step_time_s)]
    if result.throughput:
        ends = f" ({result.throughput_range})" if result.throughput_range else ""
        about.append(f"{result.throughput}{ends}")
    return Answer("How fast?", f"{format_seconds(result.step_time_s)} per step", tuple(about))


def _no_range(result: Result) -> str:
    if isinstance(result, ReplayResult):
        return "too few compiled programs were measured"
    return "nothing like it was measured"


def _quality(result: Result, ideal: Result | None) -> Answer:
    """Return the MFU beside its range and what published runs reach, or the HFU."""
    hfu = f"HFU {result.hfu:.1%}"
    if result.mfu is None:
        why = "The MFU is not known: HLO does not say which FLOPs are the model's."
        return Answer("How good?", hfu, (why,))
    about = []
    if (ends := result.mfu_range) is not None:
        about.append("{:.1%} to {:.1%}".format(*ends))
    if (measured := result.measured_mfu) is not None:
        about.append(str(measured))
    counted = "with recomputation" if isinstance(result, PlanResult) else "all matrix FLOPs"
    about.append(f"{hfu}, {counted}")
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
    return largest_parts("What bounds it?", [(each.resource, each.share) for each in limits])


def largest_parts(
    question: str, parts: Sequence[tuple[str, float]], about: str = ""
) -> Answer | None:
    """Return an answer with the largest of some parts as bars; None where there is no part.

    parts: names and fractions, the largest first.
    about: a line on them.
    """
    shown = [each for each in parts if each[1] >= LEAST_LIMIT][:LIMITS_SHOWN] or parts[:1]
    if not shown:
        return None
    name, share = shown[0]
    value = f"{name[0].upper()}{name[1:]}: {share:.1%}"
    return Answer(question, value, (about,) if about else (), tuple(shown))


def _change(best: BestChange | None) -> Answer | None:
    if best is None:
        return None
    return Answer(best.question, best.gain, best.about, settings=best.settings)


def _cost(result: Result) -> Answer | None:
    """Return the dollars for what the step reads; None where the chip has no price."""
    if (cost := result.unit_cost) is None:
        return None
    about = [f"at {format_dollars(cost.chip_hour_usd)} per chip-hour"]
    if cost.range_usd is not None:
        about.insert(0, "{} to {}".format(*map(format_dollars, cost.range_usd)))
    return Answer("What does it cost?", f"{format_dollars(cost.usd)} per {cost.unit}", tuple(about))


def _energy(joules: float) -> str:
    hours, unit = (joules / JOULES_PER_KWH, "kWh") if joules >= 3.6e5 else (joules / 3600, "Wh")
    return f"{hours:.3g} {unit}"
