"""The evidence for a lowering: the line of the table for each group, and the program behind it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from tpusim.hardware import Placement, Slice
from tpusim.lowering.collective_lowering import Lowering, TableLine
from tpusim.lowering.collectives_by_generation import line_for, possible_lowerings
from tpusim.lowering.decisions import BodyChoices
from tpusim.lowering.device_groups import DeviceGroup, group_of, places_of
from tpusim.partition import across_slices
from tpusim.plan import Axes, Compiler


@dataclass(frozen=True, slots=True)
class LoweringEvidence:
    """The line of the lowering table that the collectives over one group get.

    borrowed: no program of this generation and style shows it.
    elsewhere: names of the lowerings that the group may have in other places of the slice.
    """

    axes: Axes
    group: DeviceGroup
    line: TableLine
    borrowed: bool
    elsewhere: tuple[str, ...] = ()

    def __str__(self) -> str:
        low, group = self.line.lowering, self.group
        part = "the whole slice" if group.whole else "part of the slice"
        seen = f"seen on {', '.join(low.seen_on)} only" if self.borrowed else "seen"
        return (
            f"{'+'.join(self.axes)}, {group.size} devices on {group.dimensions} torus "
            f"dimension{'s' * (group.dimensions != 1)}, {part}: {self.line}; {seen} in: "
            f"{low.shown_by}{self._elsewhere}"
        )

    @property
    def _elsewhere(self) -> str:
        return f"; placed otherwise: {', or '.join(self.elsewhere)}" if self.elsewhere else ""


def lowering_evidence(
    choices: BodyChoices, pod: Slice, placement: Placement, groups: Iterable[Axes]
) -> tuple[LoweringEvidence, ...]:
    """Return the evidence for each group of axes within a slice; none if the lowering is ideal.

    groups: axes of the collectives of a step.
    """
    if choices.compiler.lowering == "ideal":
        return ()
    generation = pod.chip.generation
    found = []
    for axes in sorted(set(groups)):
        spanned = prod(choices.sharding.mesh[axis] for axis in across_slices(axes))
        group = group_of(axes, pod, placement, choices.tiles_weights(axes), spanned)
        if group.size > 1 and group.dimensions:
            line = line_for(generation, choices.compiler, group)
            borrowed = f"{generation} {choices.compiler.style}" not in line.lowering.seen_on
            others = _elsewhere(choices.compiler, pod, group, group.size // spanned, line.lowering)
            found.append(LoweringEvidence(axes, group, line, borrowed, others))
    return tuple(found)


def _elsewhere(
    compiler: Compiler, pod: Slice, group: DeviceGroup, within: int, low: Lowering
) -> tuple[str, ...]:
    """Return the names of the other lowerings that a group may have, of so many devices a slice."""
    places, tiled = places_of(pod, within), (group.tiled,)
    every = possible_lowerings(pod, compiler, group.size, places, tiled)
    return tuple(each.name for each in every if each != low)


def borrowed_notes(
    choices: BodyChoices, pod: Slice, placement: Placement, groups: Iterable[Axes]
) -> Iterator[str]:
    """Yield a sentence for the lowerings that no program of the generation and style shows."""
    borrowed: dict[str, list[str]] = {}
    for one in lowering_evidence(choices, pod, placement, groups):
        if one.borrowed:
            borrowed.setdefault(", ".join(one.line.lowering.seen_on), []).append("+".join(one.axes))
    for seen_on, axes in borrowed.items():
        yield (
            f"no {choices.compiler.style} program compiled for {pod.chip.generation} shows how "
            f"collectives over {', '.join(axes)} run; they run as on {seen_on}"
        )
