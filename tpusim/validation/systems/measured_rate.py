"""What a row of a table measured: seconds a step, a rate, or utilisation.

A rate compares with a prediction whatever the batch was, so a row that gives one needs no step.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tpusim.results import PlanResult
from tpusim.validation.systems.system_rows import SystemRow

RATE_UNITS: Mapping[str, str] = {
    "token": "tokens_per_s",
    "img": "examples_per_s",
    "image": "examples_per_s",
    "example": "examples_per_s",
    "sample": "examples_per_s",
    "item": "examples_per_s",
    "step": "steps_per_s",
}
"""The unit of a rate, by the word before `/s`."""

_NUMBER = r"(~?\d[\d,]*(?:\.\d+)?)\s*(k|m)?"
_RATE = re.compile(rf"{_NUMBER}\s*({'|'.join(RATE_UNITS)})s?\s*(?:/|per )\s*s\b")
_ONE = r"(\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)\s*(?:(k|m)(?![a-z]))?"
_CELL = re.compile(rf"~?{_ONE}(?:\s*[-\u2013]\s*{_ONE})?")
_EPOCH = re.compile(rf"{_NUMBER}\s*s/epoch")
_ITEMS = re.compile(rf"{_NUMBER}\s*(?:items|images)\s*(?:an|per|/)\s*epoch")
_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6}


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """A measured quantity.

    unit: `step_s`, `tokens_per_s`, `examples_per_s`, `steps_per_s`, `mfu`, `hfu` or `flops_per_s`.
    value: in seconds, 1/s, FLOP/s or a fraction.
    """

    unit: str
    value: float

    def seconds_of(self, result: PlanResult) -> float:
        """Return the step time that the quantity means for the plan of a result, in s."""
        examples, flops = result.plan.global_batch, float(result.flops.model)
        match self.unit:
            case "step_s":
                return self.value
            case "tokens_per_s":
                return result.tokens / self.value
            case "examples_per_s":
                return examples / self.value
            case "steps_per_s":
                return 1 / self.value
            case "flops_per_s":
                return flops / self.value
            case "hfu":
                return result.hfu * result.step_time_s / self.value
        return flops / result.peak_flops / self.value


def measured_of(row: SystemRow) -> MeasuredRate | None:
    """Return what a row measured: the first of a step, a rate, seconds an epoch, utilisation."""
    return next(_measured(row), None)


def _measured(row: SystemRow) -> Iterator[MeasuredRate]:
    cells = {key: (value or "").lower() for key, value in row.cells.items()}
    written = cells.get("measured_step_s", "")
    if step := middle(written):
        yield MeasuredRate("step_s", step / 1e3 if re.search(r"\d\s*ms\b", written) else step)
    throughput, unit = middle(cells.get("throughput", "")), cells.get("throughput_unit", "")
    throughput *= row.chips if re.search(r"(/|per )\s*chip", unit) else 1
    for word, kind in RATE_UNITS.items():
        if throughput and unit.startswith(word):
            yield MeasuredRate(kind, throughput)
    if throughput and unit.startswith("tflop"):
        yield MeasuredRate("flops_per_s", throughput * 1e12)
    for key in ("measured_other", "other"):
        for digits, factor, word in _RATE.findall(cells.get(key, "")):
            yield MeasuredRate(RATE_UNITS[word], _value(digits, factor))
    epoch, items = _EPOCH.search(row.notes), _ITEMS.search(row.notes)
    if epoch and items and row.batch:
        yield MeasuredRate("step_s", _value(*epoch.groups()) * row.batch / _value(*items.groups()))
    percent = middle(cells.get("measured_util_pct", "") or cells.get("util_pct", ""))
    percent *= 100 if 0 < percent < 1 else 1
    kind = cells.get("util_kind", "")
    if percent and "inference" not in kind:
        yield MeasuredRate("hfu" if "hfu" in kind.partition(";")[0] else "mfu", percent / 100)


def middle(text: str) -> float:
    """Return the number that a cell begins with, the middle of a range; 0 if there is none.

    >>> middle("0.19-0.23 (derived)"), middle("1,000-1,200"), middle("1.5k"), middle("not stated")
    (0.21, 1100.0, 1500.0, 0.0)
    """
    found = _CELL.match(text.strip().lower())
    if found is None:
        return 0.0
    low, factor, high, last = found.groups()
    ends = [_value(low, factor or last)] + ([_value(high, last)] if high else [])
    return sum(ends) / len(ends)


def _value(digits: str, factor: str) -> float:
    return float(digits.replace(",", "").lstrip("~")) * _FACTORS[factor or ""]
