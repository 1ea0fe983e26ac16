"""Rates of an input pipeline from measured samples of its stages.

[input]
read_latency = 0.0412      # 4 samples, at most 2.1 % off
reader_bandwidth = 1.98e+08
decode_s = 0.00214         # 3 samples, at most 0.8 % off
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from tpusim.base.errors import PlanError, nearest
from tpusim.base.shown_value import shown
from tpusim.base.value_checks import is_number

READ = "read"
_BY_BYTES = {"decompress": "decompress_rate", "batch": "batch_rate"}
LEAST, MOST = 1e-15, 1e24
"""The numbers of a sample: no stage takes a femtosecond or has a yottabyte."""

_STAGES = (READ, *_BY_BYTES, "decode")


class MeasuredStage(NamedTuple):
    """A sample of one stage at work.

    threads: that worked all the time.
    records: that they handled; of the stage `read`, the number of reads.
    bytes: that they read, or made.
    seconds: that it took.
    """

    stage: str
    threads: float
    records: float
    bytes: float
    seconds: float

    @property
    def thread_s(self) -> float:
        """Seconds of all threads together."""
        return self.threads * self.seconds


@dataclass(frozen=True, slots=True)
class FittedStage:
    """The rates of a stage.

    keys: of an `Input`, with their values.
    samples: number of samples.
    worst: largest relative difference between the seconds of a sample and those by the rates.
    """

    keys: Mapping[str, float]
    samples: int
    worst: float


@dataclass(frozen=True, slots=True)
class FittedInput:
    """The rates of all stages that were measured; prints as a section of a run file."""

    stages: tuple[FittedStage, ...]

    @property
    def keys(self) -> dict[str, float]:
        """The keys of an `Input` that were fitted."""
        return {key: value for stage in self.stages for key, value in stage.keys.items()}

    def __str__(self) -> str:
        return "\n".join(["[input]", *self._lines()])

    def _lines(self) -> Iterator[str]:
        for stage in self.stages:
            plural = "s" if stage.samples > 1 else ""
            said = f"  # {stage.samples} sample{plural}, at most {stage.worst:.1%} off"
            for key, value in stage.keys.items():
                yield f"{key} = {value:.4g}{said}"
                said = ""


def fit_stages(samples: Sequence[MeasuredStage]) -> FittedInput:
    """Return the rates that fit the samples best.

    A thread takes `records x decode_s` to decode, `bytes / rate` to decompress and to batch, and
    `reads x read_latency + bytes / reader_bandwidth` to read: least squares of relative errors,
    neither below zero. Reads of one size show no latency apart from the bandwidth; they count as
    bandwidth.

    Raise PlanError for an unknown stage, for no samples, and for numbers that no stage has.
    """
    if not samples:
        raise PlanError("there is no sample; write a row for each measurement of a stage")
    for number, sample in enumerate(samples, 1):
        _check_numbers(number, sample)
        if sample.stage not in _STAGES:
            raise PlanError(
                f"{sample.stage!r} is no stage of an input pipeline; "
                f"{nearest(sample.stage, _STAGES)}"
            )
    found = {name: [one for one in samples if one.stage == name] for name in _STAGES}
    return FittedInput(tuple(_fit(name, rows) for name, rows in found.items() if rows))


def _check_numbers(number: int, sample: MeasuredStage) -> None:
    """Raise PlanError for a number that no measurement has, and rates of which overflow."""
    for name, value in zip(sample._fields[1:], sample[1:], strict=True):
        if not (is_number(value) and LEAST <= value <= MOST):
            raise PlanError(
                f"sample {number} has {name} = {shown(value)}; write a number from {LEAST:g} to "
                f"{MOST:g}"
            )


def _fit(stage: str, samples: Sequence[MeasuredStage]) -> FittedStage:
    if stage == READ:
        latency, per_byte = _latency_and_time(samples)
        keys = {"read_latency": latency, "reader_bandwidth": 1 / per_byte if per_byte else inf}
    elif stage in _BY_BYTES:
        latency, per_byte = 0.0, _slope([(one.bytes / one.thread_s) for one in samples])
        keys = {_BY_BYTES[stage]: 1 / per_byte}
    else:
        latency, per_byte = _slope([one.records / one.thread_s for one in samples]), 0.0
        keys = {"decode_s": latency}
    worst = max(
        abs((one.records * latency + one.bytes * per_byte) / one.thread_s - 1) for one in samples
    )
    return FittedStage(keys, len(samples), worst)


def _slope(rates: Sequence[float]) -> float:
    """Return the x for which `rate x x` is nearest to 1, by least squares."""
    return sum(rates) / sum(rate * rate for rate in rates)


def _latency_and_time(samples: Sequence[MeasuredStage]) -> tuple[float, float]:
    """Return seconds of a read and of a byte, neither below zero."""
    reads = [one.records / one.thread_s for one in samples]
    sizes = [one.bytes / one.thread_s for one in samples]
    rr, ss = sum(r * r for r in reads), sum(s * s for s in sizes)
    rs = sum(r * s for r, s in zip(reads, sizes, strict=True))
    determinant = rr * ss - rs * rs
    if determinant <= 1e-9 * rr * ss:
        return 0.0, _slope(sizes)
    latency = (sum(reads) * ss - sum(sizes) * rs) / determinant
    per_byte = (sum(sizes) * rr - sum(reads) * rs) / determinant
    if per_byte <= 0:
        return _slope(reads), 0.0
    return (latency, per_byte) if latency > 0 else (0.0, _slope(sizes))
