"""Sends and receives: over DCN between slices, to the host, or to another device."""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from tpusim.base.errors import FileError
from tpusim.compiler.hlo.module import HloModule, Instruction
from tpusim.compiler.hlo.replica_groups import Ids, ReplicaGroups
from tpusim.compiler.to_program.data_movement import (
    AsyncRole,
    DataMovement,
    MovementKind,
    data_bytes,
    largest_dtype,
    padding_share,
    total_bytes,
)
from tpusim.program import CollectiveKind

_TARGETS = re.compile(r"(\d+)->(\d+)")
_SLICE_GROUPS = re.compile(r'_xla_megascale_target="?((?:\{[\d,]+\})+)x')
_TYPE = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)"')
_PER_SLICE = 100_000
"""Device ids of the runtime start at n x 100,000 in slice n; the first slice is 1."""


def send_movement(instruction: Instruction) -> DataMovement:
    """Return a send, which carries the data, or the recv of the same name, which ends with it.

    It goes over DCN (`xla_megascale_runtime`), to the host, or to another device of the slice. The
    host's sends have names of their own: the answer to a callback (`jax.debug.print`) does not end
    its request.
    """
    text = instruction.attributes
    found = _RENDEZVOUS.search(text)
    chain = found[1] if found else re.sub(r".*?channel_id=(\d+).*", r"channel \1", text)
    with_host = "is_host_transfer=true" in text and "megascale" not in text
    if instruction.opcode == "recv" and not with_host:
        return DataMovement(MovementKind.NOTHING, AsyncRole.START, chain=chain)
    sent = instruction.arrays[:1]
    dtype = largest_dtype(sent)
    if "_xla_megascale_target" not in text:
        receives = instruction.opcode == "recv"
        return DataMovement(
            MovementKind.FROM_HOST if receives else MovementKind.TO_HOST,
            AsyncRole.START,
            bytes=data_bytes(sent),
            dtype=dtype,
            chain=chain,
            note=CALLBACK_NOTE if receives else "",
        )
    nbytes, slices = total_bytes(sent), _slices(text)
    found = _TYPE.search(text)
    kind = _MEGASCALE_KINDS.get(found[1] if found else "")
    if kind is CollectiveKind.ALL_GATHER and slices is not None:
        nbytes *= slices.size
    return DataMovement(
        MovementKind.COLLECTIVE,
        AsyncRole.START,
        kind or CollectiveKind.PERMUTE,
        nbytes,
        dtype,
        slices=slices,
        chain=chain,
        note="" if kind else "the kind of transfer between slices is not known",
        padded=nbytes * padding_share(sent),
    )


def slice_pairs(module: HloModule) -> Iterator[ReplicaGroups]:
    """Yield the pairs of slices between which a module sends data."""
    for computation in module.computations.values():
        for instruction in computation.instructions:
            if instruction.opcode == "send":
                slices = _slices(instruction.attributes)
                if slices is not None and slices.pairs:
                    yield slices


def _slices(text: str) -> ReplicaGroups | None:
    """Return the groups or pairs of slices, from 0, of a DCN transfer, if it names them.

    Raise FileError for malformed slice numbers.
    """
    listed, pairs = _SLICE_GROUPS.search(text), _TARGETS.findall(text)
    try:
        if listed:
            groups = re.findall(r"\{([\d,]+)\}", listed[1])
            return ReplicaGroups(
                _largest([[int(each) for each in one.split(",")] for one in groups])
            )
        ends = {(int(a) // _PER_SLICE, int(b) // _PER_SLICE) for a, b in pairs}
        return ReplicaGroups(_largest(sorted(ends)), pairs=True) if ends else None
    except (ValueError, OverflowError) as error:
        said = listed[1] if listed else pairs[0]
        raise FileError(f"{str(said)[:60]!r} are not slices of a transfer") from error


def _largest(groups: Sequence[Sequence[int]]) -> Ids:
    """Return the largest groups, renumbered to count from 0."""
    most = max(map(len, groups))
    return np.array([group for group in groups if len(group) == most], dtype=np.intp) - 1


CALLBACK_NOTE = "the host (a callback, or jax.debug.print) is taken to answer at once"
_MEGASCALE_KINDS = {
    "ONE_TO_ONE": CollectiveKind.PERMUTE,
    "ALL_REDUCE": CollectiveKind.ALL_REDUCE,
    "REDUCE_SCATTER": CollectiveKind.REDUCE_SCATTER,
    "ALL_GATHER": CollectiveKind.ALL_GATHER,
    "ALL_TO_ALL": CollectiveKind.ALL_TO_ALL,
}
