"""Sends and receives: over DCN between slices, to the host, or to another device."""

import re

from tpusim.program import CollectiveKind
from tpusim.xla.module import Instruction
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
    if kind is CollectiveKind.ALL_GATHER:
        nbytes *= max((len(group) for group in slices), default=1)
    return Use(
        What.COLLECTIVE, Role.START, kind or CollectiveKind.PERMUTE, nbytes, dtype,
        slices=slices, chain=chain, note=note,
    )  # fmt: skip


def _slices(text: str) -> tuple[tuple[int, ...], ...]:
    """Groups or pairs of slices, from 0, that a transfer over DCN is between."""
    if listed := _SLICE_GROUPS.search(text):
        groups = re.findall(r"\{([\d,]+)\}", listed[1])
        return tuple(tuple(int(each) - 1 for each in group.split(",")) for group in groups)
    ends = ((int(a), int(b)) for a, b in _TARGETS.findall(text))
    return tuple(sorted({(a // _PER_SLICE - 1, b // _PER_SLICE - 1) for a, b in ends}))


ANSWERED = "the host is asked (a callback, or jax.debug.print) and taken to answer at once"
_MEGASCALE = {
    "ONE_TO_ONE": CollectiveKind.PERMUTE,
    "ALL_REDUCE": CollectiveKind.ALL_REDUCE,
    "REDUCE_SCATTER": CollectiveKind.REDUCE_SCATTER,
    "ALL_GATHER": CollectiveKind.ALL_GATHER,
    "ALL_TO_ALL": CollectiveKind.ALL_TO_ALL,
}
