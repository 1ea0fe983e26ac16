"""What-ifs of the machine: each resource of a slice a tenth faster."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from tpusim.costs import DCN, DIE_LINKS, FROM_HOST, ICI, TO_HOST
from tpusim.hardware import DIMENSION_NAMES, Chip, Slice
from tpusim.results import FASTER, Limit, Result

MachineChange = tuple[str, Slice]
"""A change in words, and the slice with it."""

_LAUNCHES = ("op_launch", "vector_launch", "collective_launch")


def machine_changes(
    result: Result, limits: Sequence[Limit], *, work: bool = True
) -> Iterator[MachineChange]:
    """Yield the slice of a result with each resource that it uses a tenth faster.

    limits: what bounds the step; dimensions of the torus that bound it together are also changed
        together.
    work: False to leave out matrix unit, vector unit and HBM.
    """
    chip = result.pod.chip
    if work:
        for what, faster in _units(chip).items():
            yield f"10% more {what}", result.pod.changed(chip=faster(chip))
    for dims in _dimensions(result, limits):
        names = ",".join(DIMENSION_NAMES[dim] for dim in dims)
        changed = chip
        for dim in dims:
            changed = changed.with_ici(dim, FASTER)
        yield f"10% more ICI {names} bandwidth", result.pod.changed(chip=changed)
    for what, field in _others(result).items():
        rate = getattr(chip, field) * FASTER
        yield f"10% more {what} bandwidth", result.pod.changed(chip=chip.replace(**{field: rate}))
    shorter = {name: getattr(chip.costs, name) / FASTER for name in _LAUNCHES}
    yield "10% faster launches", result.pod.changed(chip=chip.replace(**shorter))


def _units(chip: Chip) -> Mapping[str, Callable[[Chip], Chip]]:
    flops = {dtype: rate * FASTER for dtype, rate in chip.flops.items()}
    return {
        "MXU rate": lambda each: each.replace(flops=flops),
        "vector unit rate": lambda each: each.replace(vpu_flops=each.vpu_flops * FASTER),
        "HBM bandwidth": lambda each: each.replace(hbm_bandwidth=each.hbm_bandwidth * FASTER),
    }


def _dimensions(result: Result, limits: Sequence[Limit]) -> Iterator[tuple[int, ...]]:
    """Yield each dimension of the torus that is used, and those that bound the step together."""
    used = [
        dim
        for dim, name in enumerate(DIMENSION_NAMES)
        if any(result.link_use.get(f"{ICI}:{name}{side}") for side in "+-")
    ]
    yield from ((dim,) for dim in used)
    for limit in limits:
        kind, _, names = limit.resource.partition(" ")
        if kind == "ICI" and "," in names:
            yield tuple(DIMENSION_NAMES.index(name) for name in names.split(","))


def _others(result: Result) -> Mapping[str, str]:
    """Return the fields of the chip for the other links that are used, by their names in words."""
    used = {link for link, use in result.link_use.items() if use}
    fields = {
        "die-to-die": ("die_to_die_bandwidth", used.intersection(DIE_LINKS)),
        "DCN": ("dcn_bandwidth", {link for link in used if link.startswith(DCN)}),
        "PCIe": ("pcie_bandwidth", used.intersection((TO_HOST, FROM_HOST))),
    }
    return {what: field for what, (field, links) in fields.items() if links}
