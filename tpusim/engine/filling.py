"""Fair rates of the flows in flight, by progressive filling."""

from collections.abc import Sequence
from functools import reduce
from typing import TypeAlias

from tpusim.engine.code import Step

Level: TypeAlias = tuple[int, int]
"""A share of the rates that flows have alone, as numerator and denominator."""


def fair_rates(steps: Sequence[Step], capacities: Sequence[int]) -> list[int]:
    """The rate of each of `steps`, all in flight at once, in nB/ps.

    The rates of all rise together, as a share of what each draws alone (its cap), so flows that
    contend slow down by the same factor. When a link is full (the sum of weight x rate is its
    capacity), all flows that use it stop; the others go on to their caps (Bertsekas and Gallager,
    "Data Networks", section 6.5.2, with weights that are the demands). Rates are rounded down, but
    never to 0: a link that is too slow for its flows at 1 nB/ps each is overdrawn.

    When all caps fit, as they do for a flow alone, every flow has its cap.
    """
    rates = [step.cap for step in steps]
    room = {link: capacities[link] for step in steps for link, _ in step.uses}
    rising = list(range(len(steps)))
    while rising:
        levels = _levels([steps[flow] for flow in rising], room)
        lowest = reduce(_lower, levels.values())
        if lowest[0] >= lowest[1]:
            break
        stopped = [flow for flow in rising if _stops(steps[flow], lowest, levels)]
        for flow in stopped:
            rates[flow] = max(1, steps[flow].cap * lowest[0] // lowest[1])
            for link, weight in steps[flow].uses:
                room[link] = max(0, room[link] - weight * rates[flow])
        rising = [flow for flow in rising if flow not in stopped]
    return rates


def _levels(steps: Sequence[Step], room: dict[int, int]) -> dict[int, Level]:
    """The share of their caps at which `steps`, rising together, fill each of their links."""
    demand: dict[int, int] = {}
    for step in steps:
        for link, weight in step.uses:
            demand[link] = demand.get(link, 0) + weight * step.cap
    return {link: (room[link], wanted) for link, wanted in demand.items()}


def _lower(one: Level, other: Level) -> Level:
    return one if one[0] * other[1] <= other[0] * one[1] else other


def _stops(step: Step, lowest: Level, levels: dict[int, Level]) -> bool:
    """Whether one of its links is full at the lowest level."""
    return any(levels[link][0] * lowest[1] <= lowest[0] * levels[link][1] for link, _ in step.uses)
