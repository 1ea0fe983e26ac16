"""The section [measured] of a run file: what the run's source reports."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Any, Literal, TypeAlias

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.base.shown_value import shown
from tpusim.base.units import format_seconds
from tpusim.base.value_checks import check_words, is_number
from tpusim.results.summary import entry

Confidence: TypeAlias = Literal["", "A", "B", "C"]


@checked_call
@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A measurement of a run, as its source reports it. A number that it does not print is None.

    step_s: seconds per step.
    step_is: `printed`, or how the seconds were derived.
    source: repository, file and revision, or paper and table.
    date: of the measurement, or the name of a release.
    confidence: `A` for time and configuration from one source, `B` for a published number with a
        matching configuration, `C` where parts are inferred.
    framework: what made the program, such as `maxtext`.
    family: runs with the same family share their errors.
    assumed: keys of the file whose value the source does not state.
    unmodelled: what the source states and no key says.
    hbm_gib: GiB of HBM that one device needed.
    mfu_pct, hfu_pct: percent, by the counting rule of the source.
    tflops_per_device: by the counting rule of the source.
    tokens_per_s, examples_per_s: over all devices.
    note: for the reader.

    Raise PlanError for a number that is not above 0, and for another confidence than these.
    """

    step_s: float
    step_is: str = ""
    source: str = ""
    date: str = ""
    confidence: Confidence = ""
    framework: str = ""
    family: str = ""
    assumed: Sequence[str] = ()
    unmodelled: Sequence[str] = ()
    hbm_gib: float | None = None
    mfu_pct: float | None = None
    hfu_pct: float | None = None
    tflops_per_device: float | None = None
    tokens_per_s: float | None = None
    examples_per_s: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            missing = field.default is None and value is None
            if field.name in _NUMBERS and not missing and not _above_zero(value):
                raise PlanError(f"measured.{field.name} is {shown(value)}; write a number above 0")
            if isinstance(value, list):
                object.__setattr__(self, field.name, tuple(value))
        check_words("measured", self)

    def beside(self, predicted_s: float) -> Iterator[str]:
        """Yield the lines that a summary has of the measurement: the ratio, source and gaps.

        predicted_s: seconds of the predicted step.
        """
        how = f" ({self.step_is})" if self.step_is else ""
        yield from entry(
            "measured",
            f"{format_seconds(self.step_s)}{how}; predicted over measured "
            f"{predicted_s / self.step_s:.3f}",
        )
        confidence = f"confidence {self.confidence}" if self.confidence else ""
        if told := ", ".join(filter(None, (self.source, self.date, confidence))):
            yield from entry("source", told)
        for head, listed in (("assumed", self.assumed), ("unmodelled", self.unmodelled)):
            if listed:
                yield from entry(head, "; ".join(listed))


def _above_zero(value: Any) -> bool:
    return bool(is_number(value) and 0 < value < inf)


_NUMBERS = ("step_s", *(field.name for field in fields(Measured) if field.default is None))
