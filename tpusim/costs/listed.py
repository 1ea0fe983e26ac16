"""The route of a collective among listed groups of devices, or of a permute of listed pairs."""

from tpusim.costs.links import DIE_LINKS
from tpusim.costs.route import (
    NOTHING,
    Carried,
    Route,
    added,
    die_bytes,
    passes,
    route,
    touched,
    weight,
)
from tpusim.errors import PlanError
from tpusim.hardware import Topology
from tpusim.hardware.listed import Listed
from tpusim.network import Algorithm, Spread, spread
from tpusim.program import CollectiveKind


def listed_route(
    kind: CollectiveKind, listed: Listed, topology: Topology, devices: int, asked: str
) -> tuple[Route, int, int]:
    """The route within a slice, the devices of a group there, and the slices that it reaches over.

    devices: of a chip. Groups that are parts of the torus are carried out as those of axes; others
    on one ring through their chips, whatever algorithm is asked for. Of several slices, the one
    that has most decides.
    """
    if listed.spans or not listed.data:
        size = 1
        for span in listed.spans:
            size *= span.size
        return route(kind, listed.spans, topology, asked), size, listed.slices
    if listed.pairs and kind is not CollectiveKind.PERMUTE:
        raise PlanError(f"pairs of devices are listed for {kind}, which takes groups of them")
    found = spread(kind, listed, topology)
    return _route(kind, listed, topology, found, devices), found.devices, found.slices


def _route(
    kind: CollectiveKind, listed: Listed, topology: Topology, found: Spread, devices: int
) -> Route:  # fmt: skip
    """The route of what is spread so on the torus and between the devices of a chip."""
    part, crossing = 1 / devices, dict(zip(DIE_LINKS, found.die, strict=True))
    if found.pattern is None and not any(found.die):
        return NOTHING
    across = 1.0 if kind is CollectiveKind.PERMUTE else die_bytes(kind)
    loads = dict(found.pattern.links) if found.pattern else {}
    share = max([part * load for load in loads.values()], default=across)
    weights = {link: weight(part * load / share) for link, load in loads.items()}
    weights |= {link: weight(across * many / share) for link, many in crossing.items() if many}
    links, hbm = tuple(weights.items()), touched(kind, found.devices)
    hops = passes(kind) if any(found.die) else 0
    if (inside := found.pattern) is None:
        return Route(share, links, hops, added=added(kind, found.devices), text="across the die",
                     touched=hbm)  # fmt: skip
    how = Algorithm.PAIRS if kind is CollectiveKind.ALL_TO_ALL else Algorithm.RING
    return Route(
        share, links, inside.hops + hops,
        paths=tuple((part * nbytes, further + hops) for nbytes, further in inside.paths),
        power=inside.power, added=added(kind, found.devices), text=inside.text,
        carried=Carried(kind, how, (), topology, part, inside.hops, listed), touched=hbm,
    )  # fmt: skip
