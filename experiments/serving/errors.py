"""Errors of the predictions, row by row and by class."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np
from serving_row import ServingRow


@dataclass(frozen=True, slots=True, kw_only=True)
class RowError:
    """One measurement beside its prediction.

    row: id of the row. engine, phase, metric: its class. family: its series of configurations.
    predicted: NaN where there is none.
    assumed: what the row does not state, in words.
    reason: why there is no prediction; empty where there is one.
    judged: the row states enough.
    """

    row: str
    engine: str
    phase: str
    metric: str
    family: str
    measured: float
    predicted: float
    assumed: str = ""
    reason: str = ""
    judged: bool = True

    @property
    def error(self) -> float:
        """Prediction over measurement, less one."""
        return self.predicted / self.measured - 1

    @property
    def in_class(self) -> tuple[str, str, str]:
        """The class that the measurement is summarised in."""
        return self.engine, self.phase, self.metric

    def cells(self) -> dict[str, Any]:
        """Return a line of `serving.csv`."""
        known = not self.reason
        return {
            "row": self.row,
            "metric": self.metric,
            "measured": self.measured,
            "predicted": self.predicted if known else "",
            "error": self.error if known else "",
            "class": "/".join(self.in_class),
            "family": self.family,
            "judged": int(self.judged),
            "assumed": self.assumed,
            "reason": self.reason,
        }


def metric_of(row: ServingRow, column: str) -> str:
    """Return the metric of a column: that of `time_s` is its kind."""
    return row.text("time_kind", column) if column == "time_s" else column


def row_errors(
    row: ServingRow, predicted: Mapping[str, float], assumed: Iterable[str], reason: str = ""
) -> Iterator[RowError]:
    """Yield the measurements of a row beside their predictions.

    predicted: by column. reason: why there is no prediction of what is missing.
    """
    for column, measured in row.measurements().items():
        yield RowError(
            row=row.id,
            engine=row.text("engine"),
            phase=row.text("phase"),
            metric=metric_of(row, column),
            family=row.family,
            measured=measured,
            predicted=predicted.get(column, float("nan")),
            assumed="; ".join(assumed),
            reason="" if column in predicted else reason or "not predicted",
            judged=row.judged,
        )


def by_class(errors: Iterable[RowError]) -> list[dict[str, Any]]:
    """Return the errors of each class: absolute ones, and their mean with its sign as `bias`.

    Means are those of the families' means, so that a long series counts once.
    """
    classes: dict[tuple[str, str, str], list[RowError]] = {}
    for each in errors:
        if each.judged:
            classes.setdefault(each.in_class, []).append(each)
    return [_summary(key, found) for key, found in sorted(classes.items())]


def _summary(key: tuple[str, str, str], rows: list[RowError]) -> dict[str, Any]:
    known = [each for each in rows if not each.reason]
    made: dict[str, Any] = dict(zip(("engine", "phase", "metric"), key, strict=True))
    made |= {"rows": len(rows), "predicted": len(known)}
    if known:
        sizes = [abs(each.error) for each in known]
        made["median"] = median(sizes)
        made["p90"] = float(np.quantile(sizes, 0.9))
        made["families"] = len({each.family for each in known})
        made["mean_by_family"] = _mean_by_family(known, lambda each: abs(each.error))
        made["bias"] = _mean_by_family(known, lambda each: each.error)
    made["failures"] = {each.row: each.reason for each in rows if each.reason}
    return made


def _mean_by_family(rows: list[RowError], value: Any) -> float:
    """Return the mean of the families' means."""
    families: dict[str, list[float]] = {}
    for each in rows:
        families.setdefault(each.family, []).append(value(each))
    return fmean(fmean(found) for found in families.values())
