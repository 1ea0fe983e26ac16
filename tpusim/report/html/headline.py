"""The first section: how fast, is that good, does it fit, what does it cost."""

from collections.abc import Iterator
from typing import NamedTuple

from tpusim.base.units import format_bytes, format_count, format_seconds
from tpusim.results import PlanResult, Result

MILLION = 1e6


class Fact(NamedTuple):
    """A number of the headline.

    name: what it is.
    value: the number with its unit.
    about: its range, or how it is counted.
    """

    name: str
    value: str
    about: str = ""


def headline(result: Result, ideal: Result | None) -> list[Fact]:
    """Return the numbers that come first.

    ideal: the lower bound of a perfect compiler, if there is one.
    """
    return [*_speed(result, ideal), *_throughput(result), *_size(result), *_running(result)]


def _speed(result: Result, ideal: Result | None) -> Iterator[Fact]:
    about = "no range: nothing like it was measured"
    if (expected := result.error_range) is not None:
        about = expected.words(result.step_time_s)
    yield Fact("Step time", format_seconds(result.step_time_s), about)
    if result.mfu is None:
        yield Fact("MFU", "not known", "HLO does not say which FLOPs are the model's")
    else:
        shares = result.mfu_range
        range_ = "" if shares is None else "{:.1%} to {:.1%}".format(*shares)
        yield Fact("MFU", f"{result.mfu:.1%}", range_)
    yield Fact("HFU", f"{result.hfu:.1%}", "with recomputation")
    if ideal is not None:
        less = 1 - ideal.step_time_s / result.step_time_s
        gain = f"{less:.1%} less" if less > 0 else "no less"
        yield Fact("A perfect compiler", format_seconds(ideal.step_time_s), f"{gain}; lower bound")


def _throughput(result: Result) -> Iterator[Fact]:
    if not isinstance(result, PlanResult):
        return
    if result.model.reads_text:
        yield Fact("Tokens per second", f"{result.tokens_per_s:,.0f}", "all chips")
    else:
        yield Fact("Examples per second", f"{result.examples_per_s:,.0f}", "all chips")
    per_device = f"{result.tflops_per_device:.1f} TFLOP/s"
    yield Fact("Model FLOP/s per device", per_device)
    count = float(result.model.parameter_count)
    yield Fact("Parameters", format_count(count), f"{count:,.0f}")


def _size(result: Result) -> Iterator[Fact]:
    have = format_bytes(result.hbm_bytes)
    odds = result.hbm_odds
    sure = f"; {odds.counted}" if odds else ""
    yield Fact("Peak HBM", format_bytes(result.hbm_peak_bytes), f"of {have}: {result.fit}{sure}")
    yield Fact(
        "Exposed communication", f"{result.exposed_s / result.step_time_s:.1%}", "of the step"
    )


def _running(result: Result) -> Iterator[Fact]:
    """Yield cost and energy, where the chip's file has its price and its power."""
    if not (isinstance(result, PlanResult) and result.model.reads_text and result.tokens):
        return
    pod, seconds = result.pod, MILLION / result.tokens_per_s
    if (dollars := pod.usd_per_second()) is not None:
        about = f"at {pod.chip.price:g} USD per chip-hour"
        yield Fact("Cost per million tokens", f"{dollars * seconds:.3g} USD", about)
    if (watts := pod.watts) is not None:
        joules = watts * seconds
        about = f"at {pod.chip.power:g} W per chip"
        hours, unit = (joules / 3.6e6, "kWh") if joules >= 3.6e5 else (joules / 3600, "Wh")
        yield Fact("Energy per million tokens", f"{hours:.3g} {unit}", about)
