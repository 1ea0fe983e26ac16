"""HBM of lanes that run logs again and again: the peak, and the tensors held then.

The effect of a log on the level does not depend on when it runs, so it is summed once
(`memory_profile`), and a lane is summed run by run. Tensors that all logs of a lane take and free
alike, such as those that a forward pass saves for its backward pass, are counted as one.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tpusim.engine.clock import whole_bytes
from tpusim.engine.journal import CallTimes
from tpusim.engine.memory import HeldTensor, LaneMemory, MemoryProfile, held_tensor, largest_first
from tpusim.program import Alloc

GroupMove: TypeAlias = tuple[int, int, int]
"""Of a group of tensors, by index: the change of its count in the end, and the lowest before."""


@dataclass(frozen=True, slots=True)
class _LaneKind:
    """Common data of lanes with the same profiles: tensors, and groups that move alike."""

    allocs: dict[str, Alloc]
    groups: tuple[tuple[str, ...], ...]
    moves: dict[MemoryProfile, tuple[GroupMove, ...]]


@dataclass(slots=True)
class StageMemory:
    """The memory of the lanes of one step; data common to several is worked out once."""

    _kinds: dict[tuple[MemoryProfile, ...], _LaneKind] = field(default_factory=dict)
    _held: dict[tuple[int, int], HeldTensor] = field(default_factory=dict)
    _resident: dict[int, list[HeldTensor]] = field(default_factory=dict)

    def memory(
        self,
        resident: Sequence[Alloc],
        starts: Sequence[int],
        runs: Sequence[MemoryProfile],
        calls: Sequence[tuple[MemoryProfile, CallTimes]],
    ) -> LaneMemory:
        """Return the memory of a lane that runs logs, one from each of `starts`.

        runs: the profile of each run.
        calls: the runs of each log.

        Raise ValueError if a tensor is freed that is not held, or has two sizes.
        """
        kind = self._lane_kind(tuple(profile for profile, _ in calls))
        best, top = _highest_run(runs)
        counts = _counts_at_peak(kind, runs, best)
        always = self._always(resident)
        held = [self._of(kind.allocs[name], count) for name, count in counts.items() if count]
        base = sum([each.bytes for each in always])
        return LaneMemory(
            peak_bytes=top + base,
            peak_ps=starts[best] + runs[best].top_ps if top else 0,
            held=largest_first([*always, *held]),
            logs=tuple([(when, profile.changes) for profile, when in calls]),
        )

    def _lane_kind(self, profiles: tuple[MemoryProfile, ...]) -> _LaneKind:
        found = self._kinds.get(profiles)
        if found is None:
            found = self._kinds[profiles] = _lane_kind(profiles)
        return found

    def _always(self, resident: Sequence[Alloc]) -> list[HeldTensor]:
        """Return the tensors held all the time; equal lanes share them."""
        found = self._resident.get(id(resident))
        if found is None:
            found = self._resident[id(resident)] = [held_tensor(alloc, 1) for alloc in resident]
        return found

    def _of(self, alloc: Alloc, count: int) -> HeldTensor:
        key = id(alloc), count
        found = self._held.get(key)
        if found is None:
            found = self._held[key] = held_tensor(alloc, count)
        return found


def _lane_kind(profiles: tuple[MemoryProfile, ...]) -> _LaneKind:
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
    return _LaneKind(_allocs_by_name(profiles), tuple(map(tuple, groups.values())), moves)


def _allocs_by_name(profiles: Sequence[MemoryProfile]) -> dict[str, Alloc]:
    """Return all tensors by name."""
    found: dict[str, Alloc] = {}
    for profile in profiles:
        for alloc in profile.tensors:
            size = whole_bytes(float(alloc.bytes))
            known = whole_bytes(float(found.setdefault(alloc.tensor, alloc).bytes))
            if known != size:
                raise ValueError(f"tensor {alloc.tensor!r} has {known} and {size} bytes")
    return found


def _highest_run(runs: Sequence[MemoryProfile]) -> tuple[int, int]:
    """Return the run with the highest level, and its bytes above the resident ones."""
    level = top = best = 0
    for at, profile in enumerate(runs):
        if level + profile.top > top:
            top, best = level + profile.top, at
        level += profile.rise
    return best, top


def _counts_at_peak(kind: _LaneKind, runs: Sequence[MemoryProfile], best: int) -> Counter[str]:
    """Return the instances of each tensor at the peak of the run `best`; all runs are checked."""
    counts = [0] * len(kind.groups)
    found: Counter[str] = Counter()
    for at, profile in enumerate(runs):
        if at == best:
            found.update(
                {
                    name: count
                    for names, count in zip(kind.groups, counts, strict=True)
                    for name in names
                }
            )
            found.update(profile.held)
        for group, rise, lowest in kind.moves[profile]:
            if counts[group] + lowest < 0:
                raise ValueError(f"tensor {kind.groups[group][0]!r} is freed and not held")
            counts[group] += rise
    return found
