"""Max-min fair rates by progressive filling."""

from collections.abc import Sequence

from tpusim.engine.code import Step


def fair_rates(steps: Sequence[Step], capacities: Sequence[int]) -> list[int]:
    """The rate of each of `steps`, all in flight at once, in nB/ps.

    The rates of all rise together. A flow stops at its cap; when a link is full (the sum of
    weight x rate is its capacity), all flows that use it stop. The others go on (Bertsekas and
    Gallager, "Data Networks", section 6.5.2, with weights and caps). Rates are rounded down, but
    never to 0: a link that is too slow for its flows at 1 nB/ps each is overdrawn.

    When all caps fit, as they do for a flow alone, every flow has its cap.
    """
    rates = [step.cap for step in steps]
    room = {link: capacities[link] for step in steps for link, _ in step.uses}
    if _fits(steps, room):
        return rates
    rising = list(range(len(steps)))
    while rising:
        levels = _levels([steps[flow] for flow in rising], room)
        level = max(1, min(*levels.values(), *(steps[flow].cap for flow in rising)))
        stopped = [flow for flow in rising if _stops(steps[flow], level, levels)]
        for flow in stopped:
            rates[flow] = level
            for link, weight in steps[flow].uses:
                room[link] -= weight * level
        rising = [flow for flow in rising if flow not in stopped]
    return rates


def _fits(steps: Sequence[Step], room: dict[int, int]) -> bool:
    left = room.copy()
    for step in steps:
        for link, weight in step.uses:
            left[link] -= weight * step.cap
    return min(left.values()) >= 0


def _levels(steps: Sequence[Step], room: dict[int, int]) -> dict[int, int]:
    """The rate at which `steps`, rising together, fill each of their links."""
    weights: dict[int, int] = {}
    for step in steps:
        for link, weight in step.uses:
            weights[link] = weights.get(link, 0) + weight
    return {link: room[link] // weight for link, weight in weights.items()}


def _stops(step: Step, level: int, levels: dict[int, int]) -> bool:
    return step.cap <= level or any(levels[link] <= level for link, _ in step.uses)
