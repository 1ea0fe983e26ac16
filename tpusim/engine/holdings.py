"""HBM of lanes that run logs again and again: the peak, and what is held then.

What a log does to the level does not depend on when it runs, so it is summed once (`profile_of`),
and a lane is summed run by run. Tensors that all logs of a lane take and free alike, as those are
that a forward pass saves for its backward pass, are counted as one.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tpusim.engine.clock import whole_bytes
from tpusim.engine.journal import Calls
from tpusim.engine.memory import Held, Memory, Profile, held_of, largest_first
from tpusim.program import Alloc

Move: TypeAlias = tuple[int, int, int]
"""Of a group of tensors, by index: the change of its count in the end, and the lowest before."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What lanes of the same profiles have in common: tensors, groups of those that move alike."""

    allocs: dict[str, Alloc]
    groups: tuple[tuple[str, ...], ...]
    moves: dict[Profile, tuple[Move, ...]]


class Holdings:
    """The memory of the lanes of one step; what several have in common is worked out once."""

    __slots__ = ("_held", "_kinds", "_resident")

    def __init__(self) -> None:
        self._kinds: dict[tuple[Profile, ...], _Kind] = {}
        self._held: dict[tuple[int, int], Held] = {}
        self._resident: dict[int, list[Held]] = {}

    def memory(
        self, resident: Sequence[Alloc], starts: Sequence[int], runs: Sequence[Profile],
        calls: Sequence[tuple[Profile, Calls]],
    ) -> Memory:  # fmt: skip
        """The memory of a lane that runs logs, one from each of `starts`; `calls`: by log.

        Raises ValueError when a tensor is freed that is not held, or has two sizes.
        """
        kind = self._kind(tuple(profile for profile, _ in calls))
        best, top = _highest(runs)
        counts = _counts(kind, runs, best)
        always = self._always(resident)
        held = [self._of(kind.allocs[name], count) for name, count in counts.items() if count]
        base = sum([each.bytes for each in always])
        return Memory(
            peak_bytes=top + base,
            peak_ps=starts[best] + runs[best].top_ps if top else 0,
            held=largest_first([*always, *held]),
            logs=tuple([(when, profile.changes) for profile, when in calls]),
        )

    def _kind(self, profiles: tuple[Profile, ...]) -> _Kind:
        found = self._kinds.get(profiles)
        if found is None:
            found = self._kinds[profiles] = _kind(profiles)
        return found

    def _always(self, resident: Sequence[Alloc]) -> list[Held]:
        """What is held all the while; lanes alike share it."""
        found = self._resident.get(id(resident))
        if found is None:
            found = self._resident[id(resident)] = [held_of(alloc, 1) for alloc in resident]
        return found

    def _of(self, alloc: Alloc, count: int) -> Held:
        key = id(alloc), count
        found = self._held.get(key)
        if found is None:
            found = self._held[key] = held_of(alloc, count)
        return found


def _kind(profiles: tuple[Profile, ...]) -> _Kind:
    groups: dict[tuple[tuple[int, int], ...], list[str]] = {}
    for name in dict.fromkeys(name for profile in profiles for name in profile.moves):
        alike = tuple(profile.moves.get(name, (0, 0)) for profile in profiles)
        groups.setdefault(alike, []).append(name)
    moves = {
        profile: tuple(
            (at, *alike[number]) for at, alike in enumerate(groups) if any(alike[number])
        )
        for number, profile in enumerate(profiles)
    }
    return _Kind(_allocs(profiles), tuple(map(tuple, groups.values())), moves)


def _allocs(profiles: Sequence[Profile]) -> dict[str, Alloc]:
    """All tensors by name."""
    found: dict[str, Alloc] = {}
    for profile in profiles:
        for alloc in profile.tensors:
            size = whole_bytes(float(alloc.bytes))
            known = whole_bytes(float(found.setdefault(alloc.tensor, alloc).bytes))
            if known != size:
                raise ValueError(f"tensor {alloc.tensor!r} has {known} and {size} bytes")
    return found


def _highest(runs: Sequence[Profile]) -> tuple[int, int]:
    """The run with the highest level, and its bytes above what is resident."""
    level = top = best = 0
    for at, profile in enumerate(runs):
        if level + profile.top > top:
            top, best = level + profile.top, at
        level += profile.rise
    return best, top


def _counts(kind: _Kind, runs: Sequence[Profile], best: int) -> Counter[str]:
    """Instances of each tensor at the peak of the run `best`; all runs are checked."""
    counts = [0] * len(kind.groups)
    found: Counter[str] = Counter()
    for at, profile in enumerate(runs):
        if at == best:
            found.update(
                {name: count for names, count in zip(kind.groups, counts, strict=True)
                 for name in names}
            )  # fmt: skip
            found.update(profile.held)
        for group, rise, lowest in kind.moves[profile]:
            if counts[group] + lowest < 0:
                raise ValueError(f"tensor {kind.groups[group][0]!r} is freed and not held")
            counts[group] += rise
    return found
