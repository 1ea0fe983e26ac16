"""Sends and receives: over DCN between slices, to the host, or to another device."""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from tpusim.errors import FileError
from tpusim.program import CollectiveKind
from tpusim.xla.groups import Groups, Ids
from tpusim.xla.module import Instruction, Module
from tpusim.xla.uses import Role, Use, What, bytes_of, dtype_of

_TARGETS = re.compile(r"(\d+)->(\d+)")
_SLICE_GROUPS = re.compile(r'_xla_megascale_target="?((?:\{[\d,]+\})+)x')
_TYPE = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)"')
_PER_SLICE = 100_000
"""Devices of slice n have the runtime's ids from n x 100,000 on; the first slice is 1."""


def sent(instruction: Instruction) -> Use:
    """A send, with all that it moves, or the recv of the same name, which only ends with it.

    Over DCN (`xla_megascale_runtime`), to the host, or to another device of the slice. What the
    host sends has a name of its own: the answer of a callback (`jax.debug.print`) is no end of what
    was asked.
    """
    text = instruction.attributes
    found = _RENDEZVOUS.search(text)
    chain = found[1] if found else re.sub(r".*?channel_id=(\d+).*", r"channel \1", text)
    with_host = "is_host_transfer=true" in text and "megascale" not in text
    if instruction.opcode == "recv" and not with_host:
        return Use(What.NOTHING, Role.START, chain=chain)
    sent = instruction.arrays[:1]
    nbytes, dtype = bytes_of(sent), dtype_of(sent)
    if "_xla_megascale_target" not in text:
        if instruction.opcode == "send":
            return Use(What.TO_HOST, Role.START, bytes=nbytes, dtype=dtype, chain=chain)
        return Use(
            What.FROM_HOST, Role.START, bytes=nbytes, dtype=dtype, chain=chain, note=ANSWERED
        )
    slices = _slices(text)
    type_ = _TYPE.search(text)
    kind = _MEGASCALE.get(type_[1] if type_ else "")
    note = "" if kind else "the kind of transfer between slices is not known"
    if kind is CollectiveKind.ALL_GATHER and slices is not None:
        nbytes *= slices.size
    return Use(
        What.COLLECTIVE, Role.START, kind or CollectiveKind.PERMUTE, nbytes, dtype,
        slices=slices, chain=chain, note=note,
    )  # fmt: skip


def sent_pairs(module: Module) -> Iterator[Groups]:
    """The pairs of slices of all that a module sends from slices to others."""
    for computation in module.computations.values():
        for instruction in computation.instructions:
            if instruction.opcode == "send":
                slices = _slices(instruction.attributes)
                if slices is not None and slices.pairs:
                    yield slices


def _slices(text: str) -> Groups | None:
    """Groups or pairs of slices, from 0, that a transfer over DCN is between, where it says so.

    Raises FileError for what are no numbers of slices.
    """
    listed, pairs = _SLICE_GROUPS.search(text), _TARGETS.findall(text)
    try:
        if listed:
            groups = re.findall(r"\{([\d,]+)\}", listed[1])
            return Groups(_largest([[int(each) for each in one.split(",")] for one in groups]))
        ends = {(int(a) // _PER_SLICE, int(b) // _PER_SLICE) for a, b in pairs}
        return Groups(_largest(sorted(ends)), pairs=True) if ends else None
    except (ValueError, OverflowError) as error:
        said = listed[1] if listed else pairs[0]
        raise FileError(f"{str(said)[:60]!r} are no slices that data is sent between") from error


def _largest(groups: Sequence[Sequence[int]]) -> Ids:
    """The groups of most members, which count from 1, from 0."""
    most = max(map(len, groups))
    return np.array([group for group in groups if len(group) == most], dtype=np.intp) - 1


ANSWERED = "the host is asked (a callback, or jax.debug.print) and taken to answer at once"
_MEGASCALE = {
    "ONE_TO_ONE": CollectiveKind.PERMUTE,
    "ALL_REDUCE": CollectiveKind.ALL_REDUCE,
    "REDUCE_SCATTER": CollectiveKind.REDUCE_SCATTER,
    "ALL_GATHER": CollectiveKind.ALL_GATHER,
    "ALL_TO_ALL": CollectiveKind.ALL_TO_ALL,
}
