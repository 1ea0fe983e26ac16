"""The route of a collective for a group with slow links."""

from dataclasses import replace

from tpusim.costs.route import BUSIEST_WEIGHT, CollectiveRoute, link_weight
from tpusim.network import Loads, slowed_pattern
from tpusim.network.groups import Chips


def slowed_route(path: CollectiveRoute, members: Chips, slowness: Loads) -> CollectiveRoute:
    """Return the route of the group of some chips, whose slow links carry longer loads.

    members: coordinates of the group's chips, [member, dimension].
    slowness: of each link the factor by which it is slower, [dimension, direction, *coordinates].

    The route itself if the group uses no slow link. Bytes on its links are those that healthy links
    would move in the same time; those across the die and in HBM stay what they are.
    """
    carried = path.carried
    if carried is None:
        return path
    found = slowed_pattern(
        carried.kind, carried.algorithm, carried.spans, carried.topology, members, slowness
    )
    if found is None:
        return path
    part, further = carried.part, path.hops - carried.hops
    loads = {link: part * load for link, load in found.links}
    share = max(loads.values())
    weights = {link: link_weight(load / share) for link, load in loads.items()}
    across = {link: weight for link, weight in path.links if link not in loads}
    weights |= {
        link: link_weight(weight / BUSIEST_WEIGHT * path.share / share)
        for link, weight in across.items()
    }
    return replace(
        path,
        share=share,
        links=tuple(weights.items()),
        paths=tuple((part * nbytes, hops + further) for nbytes, hops in found.paths),
    )
