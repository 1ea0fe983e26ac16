"""The notes of a measured run, remark by remark: what they set, and what nothing reads.

A remark is a sentence, or a clause of it between commas, or a half of a clause on one side of an
`and`: the largest part that `remark_rules.py` knows. Text in brackets or in quotes is not split.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from tpusim.models.model_keys import MODEL_KEYS
from tpusim.plan.keys import PLAN_KEYS
from tpusim.validation.measured_runs import MeasuredRun
from tpusim.validation.remark_rules import SETTING
from tpusim.validation.remarks_about import ABOUT

SEPARATORS = (r";\s*|\.(?=[\s;,]|$)\s*|(?<=\.\")\s+", r",\s+", r"\s+and\s+")
"""Patterns between sentences, between clauses, and between the halves of a clause."""

_CLOSING = {"(": ")", "[": "]"}
_RULES = tuple((re.compile(rule.pattern, re.I), rule) for rule in SETTING)
_ABOUT = re.compile("|".join(f"(?:{one})" for group in ABOUT.values() for one in group), re.I)


Reading: TypeAlias = tuple[str, Mapping[str, Any] | None]
"""A remark and the fields that it sets; None if nothing reads it."""


@dataclass(frozen=True, slots=True)
class Remarks:
    """What the notes of a run say.

    model, plan: fields that remarks set, by flat key.
    unread: remarks that nothing reads, and pairs of remarks that disagree.
    """

    model: Mapping[str, Any]
    plan: Mapping[str, Any]
    unread: tuple[str, ...]

    @property
    def notes(self) -> Iterator[str]:
        """Yield a note for each field."""
        for key, value in {**self.model, **self.plan}.items():
            yield f"{key} = {'none' if value == '' else value}, as the notes say"


@cache
def remarks_of(run: MeasuredRun) -> Remarks:
    """Return the remarks of a run.

    A field that two of them set differently is not set; nor is one that contradicts its column.
    """
    given: dict[str, dict[str, Any]] = {}
    unread: list[str] = []
    for text, fields in _read(run.notes, SEPARATORS, run):
        if fields is None:
            unread.append(text)
        for key, value in (fields or {}).items():
            given.setdefault(key, {})[text] = value
    found = {}
    for key, by_remark in given.items():
        if (value := _merged(list(by_remark.values()))) is not None:
            found[key] = value
        else:
            unread.append(f"{key}: {' against '.join(by_remark)}")
    for key, value in list(found.items()):
        if (column := getattr(run, key, None)) and column != value:
            unread.append(f"{key} = {value} against {column} in its column")
            del found[key]
    return Remarks(
        {key: value for key, value in found.items() if key in MODEL_KEYS.table},
        {key: value for key, value in found.items() if key in PLAN_KEYS.table},
        tuple(dict.fromkeys(unread)),
    )


def _merged(values: Sequence[Any]) -> Any:
    """Return the value that all remarks agree on, tables put together, or None if they disagree."""
    first, *others = values
    if isinstance(first, Mapping):
        entries = [entry for value in values for entry in value.items()]
        table = dict(entries)
        return table if all(table[key] == value for key, value in entries) else None
    return first if all(value == first for value in others) else None


def _read(text: str, separators: Sequence[str], run: MeasuredRun) -> Iterator[Reading]:
    """Yield the remarks of a text, by its smallest parts if all of them are known.

    Otherwise by the whole, if it is known; otherwise, the unknown clauses of a sentence are unread
    each by itself, and a clause of several halves as a whole.
    """
    separator, *finer = separators
    for part in _split(text, separator):
        inner = list(_read(part, finer, run)) if finer else []
        fields = _fields(part, run)
        if all(found is not None for _, found in inner) and inner:
            yield from inner
        elif fields is not None or len(finer) < 2:
            yield part, fields
        else:
            yield from inner


def _fields(remark: str, run: MeasuredRun) -> Mapping[str, Any] | None:
    """Return the fields that a remark sets, none if it is about the measurement, or None."""
    for pattern, rule in _RULES:
        if found := pattern.fullmatch(remark):
            return rule.reads(found, run)
    return {} if _ABOUT.fullmatch(remark) else None


def _split(text: str, separator: str) -> Iterator[str]:
    """Yield the parts of a text between separators that are in no brackets and no quotes."""
    closing: list[str] = []
    start = position = 0
    pattern = re.compile(separator)
    while position < len(text):
        letter = text[position]
        found = None if closing else pattern.match(text, position)
        if found and found.end() > position:
            yield from filter(None, [text[start:position].strip()])
            start = position = found.end()
            continue
        if closing and letter == closing[-1]:
            closing.pop()
        elif letter == '"' or letter in _CLOSING:
            closing.append(_CLOSING.get(letter, letter))
        position += 1
    yield from filter(None, [text[start:].strip()])
