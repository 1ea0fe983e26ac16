"""Copies behind exchanges of tokens for heads: what came lies in the order of its senders."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from tpusim.graph import Pointwise, Tensor
from tpusim.partition.passes import Entry, Planned
from tpusim.partition.scope import HEADS, TOKENS
from tpusim.partition.template import Buffer, Calc
from tpusim.program import CollectiveKind


def with_turned_heads(entries: Sequence[Entry], buffers: dict[str, Buffer]) -> list[Entry]:
    """The entries with a pass through HBM behind each all-to-all of an attention kernel's tensors.

    All four forward and all eight backward have one in a compiled program of 32 heads and 8 K/V
    heads over 4 devices (sequences of 32,768, v6e 4x4, libtpu 0.0.42.1), besides the copies into
    the kernel's layout and out of it. The copies are added to `buffers`.
    """
    result: list[Entry] = []
    for entry in entries:
        if not _is_exchange(entry):
            result.append(entry)
            continue
        (comm,) = entry.comms
        (made,) = comm.writes
        came = f"{made} as it came"
        buffers[came] = buffers[made]
        local = buffers[made].local
        tensor = Tensor(comm.tensor, local.dims, dtype=comm.dtype)
        turned = replace(tensor, name=f"{tensor.name} turned")
        group = Pointwise(
            f"{comm.tensor}/turn", (tensor,), (turned,), 0.0, over=local.dims[-1:], keeps="",
            alone=True, phase=comm.phase,
        )  # fmt: skip
        split = tuple((dim, axes) for dim, axes in local.split().items() if axes)
        result.append(replace(entry, comms=(replace(comm, writes=(came,)),)))
        result.append(
            Calc(name=f"turn/{made}", op=group, split=split, reads=(came,), writes=(made,))
        )
    return result


def _is_exchange(entry: Entry) -> TypeGuard[Planned]:
    if not isinstance(entry, Planned) or entry.comms[0].kind is not CollectiveKind.ALL_TO_ALL:
        return False
    dims = set(entry.comms[0].payload.dims)
    return not dims.isdisjoint(HEADS) and not dims.isdisjoint(TOKENS)
