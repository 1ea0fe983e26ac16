"""The slices that a search chooses from."""

from collections.abc import Hashable, Iterable, Sequence
from math import prod

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.base.shown_value import shown
from tpusim.base.value_checks import check_positive, is_list
from tpusim.hardware import TWISTED, Slice, can_twist, format_shape, legal_shapes
from tpusim.hardware.catalogue import load_chip


def distinct_slices(slices: Sequence[Slice]) -> Iterable[Slice]:
    """Return the slices without those that are another one with its dimensions in another order."""
    found: dict[Hashable, Slice] = {}
    for pod in slices:
        topology = pod.topology
        dims = topology.dims if pod.impaired else tuple(sorted(topology.dims))
        clocked = pod.chip, pod.num_slices, pod.dcn_oversubscription, pod.clock
        found.setdefault((*clocked, dims, topology.twisted, pod.slow, pod.broken), pod)
    return found.values()


@checked_call
def slices_of(
    generations: Sequence[str],
    least: int,
    most: int,
    *,
    twisted: bool = False,
    num_slices: Sequence[int] = (1,),
) -> list[Slice]:
    """Return every legal slice of the generations with `least` to `most` chips.

    twisted: also the twisted torus of shapes that have one.
    num_slices: numbers of slices joined by DCN; the chips are those of all.

    Raise PlanError if there is none, and HardwareError for an unknown generation.
    """
    if not is_list(generations):
        raise PlanError(
            f"generations is {shown(generations)}; write a list of chips, such as ['v5e', 'v6e']"
        )
    if not is_list(num_slices):
        raise PlanError(f"num_slices is {shown(num_slices)}; write a list, such as [1, 2]")
    numbers = [("least", least), ("most", most), *(("num_slices", each) for each in num_slices)]
    for key, value in numbers:
        check_positive(key, value)
    found = []
    for name in generations:
        chip, rules = load_chip(name), Slice(name, format_shape(legal_shapes(name)[0])).slice_rules
        for dims in legal_shapes(name):
            twists = twisted and rules.twistable and can_twist(dims)
            found += [
                Slice(chip, format_shape(dims) + suffix, count)
                for suffix in (("", TWISTED) if twists else ("",))
                for count in num_slices
                if least <= prod(dims) * count <= most
            ]
    if least > most:
        raise PlanError(f"chips are from {least:,} to {most:,}; write the least first")
    if not found:
        raise PlanError(
            f"no slice of {', '.join(generations)} has {least:,} to {most:,} chips; write another "
            "range"
        )
    return found
