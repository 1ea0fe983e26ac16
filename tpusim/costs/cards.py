"""The network cards of slices as links: what leaves a slice, and what arrives there.

All slices run one program, so one link each way stands for the cards of all of them, as long as all
take the same part in all that crosses: in a ring each sends and receives. A permute of listed pairs
leaves slices idle, such as the pipeline's step back from the last stage to the first beside the
others' steps on. Then slices are one link where every permute of the program uses them alike, and a
permute draws on those links alone that its senders leave by and its receivers are reached by.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tpusim.costs.links import ARRIVING, DCN, LEAVING
from tpusim.hardware.listed import Listed

Alike: TypeAlias = tuple[frozenset[int], ...]
"""The slices, in sets of those that one link stands for."""


@dataclass(frozen=True, slots=True)
class Cards:
    """The slices that one link stands for, of what leaves them and of what arrives."""

    leaving: Alike
    arriving: Alike

    @classmethod
    def of(cls, listed: Iterable[Listed], slices: int) -> "Cards":
        """The links for a program whose permutes are among what is listed."""
        ends = [each.ends for each in listed if each.pairs]
        return cls(
            _alike([sources for sources, _ in ends], slices),
            _alike([targets for _, targets in ends], slices),
        )

    def links(self, listed: Listed | None = None) -> tuple[str, ...]:
        """The names of the links that listed pairs draw on; those of all slices for all else."""
        sources, targets = listed.ends if listed is not None and listed.pairs else (None, None)
        return (
            *_used(LEAVING, self.leaving, sources),
            *_used(ARRIVING, self.arriving, targets),
        )


def _alike(used: Iterable[frozenset[int]], slices: int) -> Alike:
    """The slices that are together in or out of each of these sets."""
    found = [frozenset(range(slices))]
    for ends in used:
        found = [part for each in found for part in (each & ends, each - ends) if part]
    return tuple(sorted(found, key=min))


def _used(way: str, alike: Alike, ends: frozenset[int] | None) -> tuple[str, ...]:
    """The links of the sets that have some of these slices, or of all sets."""
    whole = len(alike) == 1
    return tuple(
        way if whole else f"{DCN}:{_written(each)}{way[-1]}"
        for each in alike
        if ends is None or each & ends
    )


def _written(slices: frozenset[int]) -> str:
    """Numbers of slices, such as `0..2,5`: a dash at the end is a direction."""
    runs: list[list[int]] = []
    for each in sorted(slices):
        if runs and runs[-1][-1] == each - 1:
            runs[-1].append(each)
        else:
            runs.append([each])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)
