"""Samples of plans by kind, of which a third is held out and sealed until it is opened, once.

Number 10000 R + 100 K + P is place P of kind K in round R, drawn by `random.Random(number)`. A
third of each kind, those whose combinations have the smallest hashes, is held out: compiled like
the others, but sealed (`sealed_rows.py`). Once it was opened (`open_held_out.py`), rules learn from
it too, and a fresh third is another round.
"""

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from sample import Twin, slice_of

from tpusim.base.errors import TpusimError

PER_KIND = 9

Drawn = tuple[str, dict[str, Any], dict[str, Any], str]
"""Slice, model, plan with the smallest batch, and name of the flags."""


@dataclass(frozen=True)
class KindTwin(Twin):
    """A plan of a sample by kind. Its system is its kind."""

    @property
    def combination(self) -> str:
        """What decides the structure, without widths and tokens."""
        free = {k: v for k, v in self.plan.items() if k not in ("global_batch", "seq_len")}
        wide = {k: v for k, v in self.model.items() if isinstance(v, str | bool)}
        return json.dumps([self.system, str(self.pod), free, wide, self.flags], sort_keys=True)

    def with_batch(self, times: int) -> "KindTwin":
        """Return the twin with some times the batch."""
        return replace(self, plan=self.plan | {"global_batch": times * self.plan["global_batch"]})


@dataclass(frozen=True, eq=False)
class SealedSample:
    """A sample by kind.

    round: another one has other plans of the same kinds.
    kinds: their names, and the function that draws a place of each.
    sized: the twin with a batch and layers that make sense, given with the smallest batch.
    """

    name: str
    round: int
    kinds: Mapping[str, Callable[[random.Random, int], Drawn]]
    sized: Callable[[KindTwin], KindTwin | None]

    @property
    def table(self) -> Path:
        """Rows to learn from."""
        return self._file(".parquet")

    @property
    def journal(self) -> Path:
        """Rows to learn from of a run that was ended."""
        return self._file(".jsonl")

    @property
    def seal(self) -> Path:
        """Rows that are held out."""
        return self._file("_sealed.txt")

    @property
    def openings(self) -> Path:
        """The record of all openings."""
        return self._file("_openings.json")

    def _file(self, end: str) -> Path:
        return Path(__file__).parent / f"{self.name}{end}"

    def numbers(self) -> Iterator[int]:
        """Return the numbers of all twins, the first of each kind before the second."""
        kinds = range(len(self.kinds))
        return (self._number(kind, place) for place in range(PER_KIND) for kind in kinds)

    def _number(self, kind: int, place: int) -> int:
        return 10000 * self.round + 100 * kind + place

    def is_held_out(self, number: int) -> bool:
        """Return True for a number of the third that is held out."""
        return number in _held_out(self, number // 100)

    def draw(self, number: int) -> KindTwin | None:
        """Return twin `number`, or None if what was drawn does not fit together."""
        try:
            twin = self.sized(self.unsized(number))
            if twin is not None:
                twin.arguments()
        except TpusimError:
            return None
        return twin

    def unsized(self, number: int) -> KindTwin:
        """Return twin `number` with the smallest batch."""
        kind = list(self.kinds)[number // 100 % 100]
        pod, model, plan, flags = self.kinds[kind](random.Random(number), number % 100)
        return KindTwin(number, slice_of(pod), model, plan, flags, kind)


@cache
def _held_out(sample: SealedSample, row: int) -> frozenset[int]:
    """Return the numbers that are held out of a kind. row: its numbers without the place."""
    twins = [sample.unsized(100 * row + place) for place in range(PER_KIND)]
    twins.sort(key=lambda twin: hashlib.sha256(twin.combination.encode()).digest())
    return frozenset(twin.number for twin in twins[: PER_KIND // 3])
