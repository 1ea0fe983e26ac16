"""The section [measured] of a run file: what the run's source reports."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf, prod
from typing import Any, Literal, TypeAlias

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.base.shown_value import shown
from tpusim.base.text_entry import entry
from tpusim.base.toml_text import toml
from tpusim.base.units import format_seconds
from tpusim.base.value_checks import check_words, is_list, is_number

Confidence: TypeAlias = Literal["", "A", "B", "C"]

MOST_COMBINATIONS = 32
"""Of the values of `open`: each is a run to simulate."""


@checked_call
@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A measurement of a run, as its source reports it. A number that it does not print is None.

    step_s: step time.
    step_is: `printed`, or the derivation of the step time.
    source: repository, file and revision, or paper and table.
    date: date of the measurement, or name of a release.
    confidence: `A` for one source of time and configuration, `B` for a matching configuration, `C`
        for inferred parts.
    framework: framework of the program, such as `maxtext`.
    family: runs of one family share their errors.
    assumed: keys of the file that the source does not state.
    open: plausible values of some assumed keys, including the file's own. The runs of all
        combinations are the span of the prediction. Keys that go together are one key,
        `plan.seq_len, plan.global_batch`, whose values are lists.
    unmodelled: properties of the run that no key describes.
    hbm_gib: HBM of one device.
    mfu_pct, hfu_pct: MFU and HFU by the source's counting rule.
    tflops_per_device: rate by the source's counting rule.
    tokens_per_s, examples_per_s: rate over all devices.
    note: for the reader.

    Raise PlanError for a number that is not above 0, for another confidence than these, and for an
    open key that is not assumed, has fewer than two values, or too many with the others.
    """

    step_s: float
    step_is: str = ""
    source: str = ""
    date: str = ""
    confidence: Confidence = ""
    framework: str = ""
    family: str = ""
    assumed: Sequence[str] = ()
    open: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    unmodelled: Sequence[str] = ()
    hbm_gib: float | None = None
    mfu_pct: float | None = None
    hfu_pct: float | None = None
    tflops_per_device: float | None = None
    tokens_per_s: float | None = None
    examples_per_s: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        for own in fields(self):
            value = getattr(self, own.name)
            missing = own.default is None and value is None
            if own.name in _NUMBERS and not missing and not _above_zero(value):
                raise PlanError(f"measured.{own.name} is {shown(value)}; write a number above 0")
            if isinstance(value, list):
                object.__setattr__(self, own.name, tuple(value))
        check_words("measured", self)
        self._check_open()

    def _check_open(self) -> None:
        if not isinstance(self.open, Mapping):
            raise PlanError(
                f"measured.open is {shown(self.open)}; write a table of lists of values by key, "
                'such as { "plan.seq_len" = [512, 1024] }'
            )
        named = [one for key in self.open if isinstance(key, str) for one in open_keys(key)]
        for key, values in self.open.items():
            if not isinstance(key, str):
                raise PlanError(f"measured.open has {shown(key)}; write keys of the run file")
            for one in open_keys(key):
                if one not in self.assumed:
                    raise PlanError(
                        f"measured.open has {shown(one)}, which measured.assumed does not name; "
                        "add it there if the source leaves it open, or leave it out of both"
                    )
                if named.count(one) > 1:
                    raise PlanError(f"measured.open names {one} twice; write it in one entry")
            if not is_list(values) or len(values) < 2:
                raise PlanError(
                    f"measured.open has {shown(values)} for {key}; write a list of two values or "
                    "more, the file's own among them"
                )
            if any(each in values[:place] for place, each in enumerate(values)):
                raise PlanError(
                    f"measured.open has {toml(values)} for {key}, a value twice; write different "
                    "values"
                )
            count = len(open_keys(key))
            if count > 1 and any(not is_list(each) or len(each) != count for each in values):
                raise PlanError(
                    f"measured.open has {toml(values)} for {key}; write lists of {count} values, "
                    "one for each of these keys"
                )
        count = prod(map(len, self.open.values()))
        if count > MOST_COMBINATIONS:
            raise PlanError(
                f"measured.open has {count} combinations of values, each of which is a run to "
                f"simulate; write fewer values, for {MOST_COMBINATIONS} combinations or less"
            )

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
        if self.open:
            values = (f"{key} {' or '.join(map(toml, each))}" for key, each in self.open.items())
            yield from entry("open", "; ".join(values))


def open_keys(key: str) -> tuple[str, ...]:
    """Return the keys that a key of `Measured.open` names."""
    return tuple(one.strip() for one in key.split(","))


def _above_zero(value: Any) -> bool:
    return bool(is_number(value) and 0 < value < inf)


_NUMBERS = ("step_s", *(each.name for each in fields(Measured) if each.default is None))
