"""What the rotation of queries and keys by their position holds beside operand and result.

A rotation reads its operand in f32, and one fusion writes its two halves, each a tensor of its own
with its elements in the lanes: halves of 64 take as much as the head of 128 that they are joined to
after it. Queries and keys of one shape are rotated by one fusion, with four halves
(bf16[2,4096,32,64] in 128 lanes beside f32[2,4096,32,128], v4 2x2x4). All of 1,237 such fusions in
195 programs for v2 to 7x read f32, and beside a kernel the halves of 881 of 934 are in the lanes
so; elsewhere 94 of 303, as positions are in the lanes there (libtpu 0.0.42.1).

The rotation of their gradients is left out. It holds as much, but plans pack it badly: of the 51
programs that it moves 18 come nearer by 1 % or more and 19 less near.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from tpusim.graph import Pointwise
from tpusim.lowering.body_entries import Entry
from tpusim.lowering.op_work import Buffers, buffer_bytes
from tpusim.lowering.row_sums import HeldBeside, kernel_of
from tpusim.partition import DTYPE_BYTES, ComputeNode, Sizes
from tpusim.program import LANES, Alloc, round_up


def rotations(entries: Sequence[Entry], buffers: Buffers, sizes: Sizes) -> Iterator[HeldBeside]:
    """Yield what rotations in a body with an attention kernel hold beside their tensors.

    A result is written over its operand, in whose place one of the halves lies first.
    """
    if not any(map(kernel_of, entries)):
        return
    found = [(place, entry) for place, entry in enumerate(entries) if _turns_heads(entry)]
    joined = False
    for (place, entry), after in zip_longest(found, found[1:]):
        (key,) = entry.writes
        own = buffer_bytes(buffers[key], sizes)
        end = place
        if after and after[1].phase is entry.phase and not joined:
            alike = bool(own == buffer_bytes(buffers[after[1].writes[0]], sizes))
            end = after[0] if alike else place
        joined = end > place
        local = buffers[key].local
        half = sizes.extent(local.dims[-1], local.split().get(local.dims[-1], ())) / 2
        in_f32 = own * (DTYPE_BYTES["f32"] / sizes.itemsize(buffers[key].dtype))
        other_half = own * (round_up(half, LANES) / half - 1)
        for name, nbytes in {"in f32": in_f32, "other half": other_half}.items():
            yield HeldBeside(place, end, Alloc(f"{key}/{name}", nbytes, buffers[key].category))


def _turns_heads(entry: Entry) -> bool:
    """Return True for the rotation of all elements of each head."""
    op = entry.op if isinstance(entry, ComputeNode) else None
    turn = op.function if isinstance(op, Pointwise) else None
    if op is None or turn is None or turn.name != "rotary":
        return False
    return ("width", op.outputs[0].dims[-1]) in turn.constants
