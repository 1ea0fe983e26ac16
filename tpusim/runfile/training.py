"""The section [train] of a run file: a training run around the steps of its plan."""

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from tpusim.base.errors import PlanError, nearest
from tpusim.base.shown_value import shown

if TYPE_CHECKING:
    from tpusim.training import TrainingRun

TRAIN, FAILURES, STRAGGLERS = "train", "failures", "stragglers"

_EXAMPLES = {
    TRAIN: "tokens = 1e12",
    FAILURES: "spares = 2",
    STRAGGLERS: "pauses = { per_hour = 2, seconds = 0.5 }",
}


def split_train(data: Mapping[str, Any]) -> "tuple[dict[str, Any], TrainingRun | None]":
    """Return the other tables of a file, and its training run if it has a section [train].

    Its failures and its stragglers are sections of their own, [failures] and [stragglers].

    Raise PlanError for a key that a training run does not have, and for what it refuses.
    """
    if TRAIN not in data:
        return dict(data), None
    from tpusim.failures import Failures
    from tpusim.training import Checkpoints, Evaluations, Stragglers, TrainingRun

    sections: Mapping[str, type] = {FAILURES: Failures, STRAGGLERS: Stragglers}
    others = {name: each for name, each in data.items() if name not in (TRAIN, *sections)}
    given = _known([TRAIN], data[TRAIN], TrainingRun)
    tables: Mapping[str, type] = {"evaluations": Evaluations, "checkpoints": Checkpoints}
    for name, kind in tables.items():
        if name in given:
            given[name] = kind(**_known([TRAIN, name], given[name], kind))
    for name, kind in sections.items():
        if name in data:
            given[name] = kind(**_known([name], data[name], kind))
    return others, TrainingRun(**given)


def _known(path: list[str], table: Any, kind: type) -> dict[str, Any]:
    """Return the keys of a table. Raise PlanError if it is none, or lacks or adds a key."""
    where = ".".join(path)
    if not isinstance(table, dict):
        example = _EXAMPLES.get(where, "every = 1000")
        raise PlanError(f"{where} is {shown(table)}; write a section [{where}] with {example}")
    known = [field.name for field in fields(kind)]
    for key in table:
        if key not in known:
            raise PlanError(f"[{where}] has an unknown key {key!r}; {nearest(key, known)}")
    if "every" in known and "every" not in table:
        raise PlanError(f"{where}.every is missing; write the steps between two of them")
    return dict(table)
