"""The routes of groups on a slice some of whose links are slow or broken."""

from dataclasses import dataclass, replace

import numpy as np

from tpusim.costs.route import BUSIEST_WEIGHT, CollectiveRoute, link_weight
from tpusim.hardware import Slice, link_ends
from tpusim.network import (
    LinkSet,
    Loads,
    link_numbers,
    link_shape,
    rerouted_pattern,
    slowed_pattern,
)
from tpusim.network.groups import Chips


def impaired_slices(pod: Slice) -> tuple[int, ...]:
    """Return the numbers of the slices with slow or broken links, in order."""
    return tuple(sorted({*(link.slice for link in pod.slow.links), *pod.broken.slices}))


def links_out(pod: Slice, number: int) -> LinkSet:
    """Return the links of a slice that carry nothing."""
    return link_numbers(pod.broken.directed(number, pod.topology), pod.topology)


@dataclass(frozen=True, slots=True, eq=False)
class SliceLinks:
    """The slow and the broken links of a slice.

    slowness: of each link the factor by which it is slower, [dimension, direction, *coordinates].
    out: links that carry nothing.
    """

    slowness: Loads
    out: LinkSet

    @classmethod
    def of(cls, pod: Slice, number: int) -> "SliceLinks":
        """Return those of one slice of a pod."""
        slowness = np.ones(link_shape(pod.topology))
        for link in pod.slow.links:
            if link.slice == number:
                for dim, side, at in link_ends(*link.between, pod.topology):
                    slowness[(dim, side, *at)] = 1 / link.bandwidth
        return cls(slowness, links_out(pod, number))

    def route(self, path: CollectiveRoute, members: Chips) -> CollectiveRoute:
        """Return the route of the group of some chips, whose slow links carry longer loads.

        members: coordinates of the group's chips, [member, dimension].

        The route itself if the group uses no slow link and none that carries rerouted bytes. Bytes
        on its links are those that healthy links would move in the same time, around broken links
        at least those of the busiest group of a healthy slice; those across the die and in HBM stay
        what they are.
        """
        carried = path.carried
        if carried is None:
            return path
        where = carried.kind, carried.algorithm, carried.spans, carried.topology
        found = (
            rerouted_pattern(*where, members, self.slowness, self.out)
            if self.out
            else slowed_pattern(*where, members, self.slowness)
        )
        if found is None:
            return path
        part, further = carried.part, path.hops - carried.hops
        loads = {link: part * load for link, load in found.links}
        share = max([*loads.values(), path.share] if self.out else loads.values())
        weights = {link: link_weight(load / share) for link, load in loads.items()}
        across = {link: weight for link, weight in path.links if link not in loads}
        weights |= {
            link: link_weight(weight / BUSIEST_WEIGHT * path.share / share)
            for link, weight in across.items()
        }
        slowed = replace(
            path,
            share=share,
            links=tuple(weights.items()),
            paths=tuple((part * nbytes, hops + further) for nbytes, hops in found.paths),
        )
        if not self.out:
            return slowed
        around = replace(carried, out=self.out, hops=found.hops)
        return replace(slowed, hops=found.hops + further, carried=around)
