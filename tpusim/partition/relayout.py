"""Copies around an exchange with experts: what is sent, and what came, lies as nobody reads it.

An all-to-all sends one piece to each device of its group, one after the other in memory, and leaves
what came in the order of the senders. A product has its tensors in the order of its dimensions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard

from tpusim.graph import Pointwise, Route, Tensor
from tpusim.partition.passes import Entry, Planned
from tpusim.partition.sizes import Sizes
from tpusim.partition.template import Buffer, Calc, Comm
from tpusim.program import CollectiveKind


def with_relayouts(
    entries: Sequence[Entry], buffers: dict[str, Buffer], sizes: Sizes
) -> list[Entry]:
    """The entries with a pass through HBM wherever an exchange of slots needs a copy.

    Between products (a mask): before the exchange where the dimension that it brings together has
    more than one element, which then lies outside of the pieces; and after it where the dimension
    that it parts has, too. With b sequences a chip and e experts on it, that is on the way there
    for b > 1, on the way back for e > 1, and behind both for b > 1 and e > 1: so all 35 exchanges
    of slots, of their results and of the slots' gradients in layers with a mask (libtpu 0.0.42.1;
    embed 4096, mlp 14336, E=8 with b, e = 2, 2 on v6e 4x4, with MaxText's flags too, and on v5p
    4x4x4, 2, 1 on v6e 16x16 and 1, 2 on v5e 4x4; mlp 8192, E=16, 1, 1 on v5e 4x4; embed 2048, E=64,
    1, 4 on v5e 4x4). Gradients of results are turned besides in three of these seven programs, as
    their product has the embedding first; that is not counted.

    What is sorted is gathered in the order of the senders, and sorted again among the experts of
    the device that has them: after the way there and before the way back (MaxText's moe.py,
    `local_permute`).
    """
    sorted_keys = {
        key
        for entry in entries
        if isinstance(entry, Calc) and isinstance(entry.op, Route)
        for key in (*entry.reads, *entry.writes)
    }
    result: list[Entry] = []
    for entry in entries:
        if not _is_exchange(entry):
            result.append(entry)
            continue
        (comm,) = entry.comms
        by_sort = not sorted_keys.isdisjoint((*comm.reads, *comm.writes))
        sides = _of_sort(comm, buffers) if by_sort else _of_products(comm, buffers, sizes)
        result.extend(copied_around(entry, sides, "sort" if by_sort else "relayout", buffers))
    return result


def _is_exchange(entry: Entry) -> TypeGuard[Planned]:
    """Whether slots go from the devices of their tokens to those of their experts, or back."""
    if not isinstance(entry, Planned) or entry.comms[0].kind is not CollectiveKind.ALL_TO_ALL:
        return False
    dims = entry.comms[0].payload.dims
    return "expert" in dims and "slot" in dims and "seq" not in dims


def _of_products(comm: Comm, buffers: Mapping[str, Buffer], sizes: Sizes) -> tuple[bool, bool]:
    """Whether it is copied before, and after: see `with_relayouts`."""
    before, after = (buffers[key].local.split() for key in (comm.reads[0], comm.writes[0]))
    joined = next(dim for dim in before if len(before[dim]) > len(after[dim]))
    parted = next(dim for dim in before if len(before[dim]) < len(after[dim]))
    several = bool(sizes.extent(joined, before[joined]) > 1)
    return several, several and bool(sizes.extent(parted, after[parted]) > 1)


def _of_sort(comm: Comm, buffers: Mapping[str, Buffer]) -> tuple[bool, bool]:
    """Whether the device that it leaves has the experts, and the one that it goes to."""
    there = bool(buffers[comm.writes[0]].local.split()["expert"])
    return not there, there


def copied_around(
    entry: Planned, sides: tuple[bool, bool], name: str, buffers: dict[str, Buffer]
) -> tuple[Entry, ...]:
    """An exchange with passes through HBM before it and after it, as `sides` say.

    The copies are added to `buffers`.
    """
    (comm,) = entry.comms
    (source,), (made,) = comm.reads, comm.writes
    copied, turned = sides
    sent = _copy_of(source, name, "sent", buffers) if copied else source
    came = _copy_of(made, name, "as it came", buffers) if turned else made
    moved = replace(entry, comms=(replace(comm, reads=(sent,), writes=(came,)),))
    before = (_pass(f"{name}/{sent}", comm, source, sent, buffers),) if copied else ()
    after = (_pass(f"{name}/{made}", comm, came, made, buffers),) if turned else ()
    return (*before, moved, *after)


def _copy_of(key: str, name: str, which: str, buffers: dict[str, Buffer]) -> str:
    copy = f"{key} {name} {which}"
    buffers[copy] = buffers[key]
    return copy


def _pass(name: str, comm: Comm, source: str, made: str, buffers: Mapping[str, Buffer]) -> Calc:
    """A copy in another order, which cannot be written over what it reads."""
    local = buffers[source].local
    tensor = Tensor(comm.tensor, local.dims, dtype=comm.dtype)
    turned = replace(tensor, name=f"{tensor.name} turned")
    group = Pointwise(
        f"{comm.tensor}/turn", (tensor,), (turned,), 0.0, over=local.dims[-1:], keeps="",
        alone=True, phase=comm.phase,
    )  # fmt: skip
    split = tuple((dim, axes) for dim, axes in local.split().items() if axes)
    return Calc(name=name, op=group, split=split, reads=(source,), writes=(made,))
