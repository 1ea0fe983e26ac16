"""Work of sorting tokens by their experts: passes over rows, rows that are picked and added."""

from collections.abc import Mapping
from dataclasses import replace

from tpusim.graph import ROUTED, Pointwise, TokenRouting
from tpusim.lowering.active_experts import block_passes
from tpusim.partition import Sizes
from tpusim.plan import Axes
from tpusim.program import LANES, SUBLANES, Number, VectorWork, sublane_tiles

SUM_BYTES = 4.0
"""Bytes of an element of the results of experts while they are added up (`float32_weight_sum`)."""

ROWS_ADDED, ROWS_HELD = 384, 224
"""Rows that a scatter reads at once, and rows of its result that it holds meanwhile."""

OVERLAPPED = 0.127
"""Cycles of today's scatter over those of the programs of early 2025 (`ADDITION_CYCLES`): its loads
are ahead of its stores (libtpu 0.0.42.1: 41 bundles for a row of 4096 on v5p, and 25 for one of
2880 on 7x)."""


def routing_work(op: TokenRouting, split: Mapping[str, Axes], sizes: Sizes) -> VectorWork:
    """Return the work of sorting tokens: rows cross HBM, picked by the order of their experts.

    A dispatch first repeats the row of each token for its choices, and then picks the row of each
    slot: both are read, and written. A combine picks the rows back, then reads them and writes
    their sum for each token, in f32. The transpose of a weighted one first writes each token's
    gradient times its gates, and picks what the combine had picked again for the gates' gradient
    (MaxText's moe.py, `permute` and `unpermute`; its repetition is a pass of its own and its
    gathers need no other on v6e 2x2, libtpu 0.0.42.1. `jnp.take` needs one that selects, in place
    of the repetition).

    Rows of a token's choices, [token, choice, embed], have the choices in the sublanes, and rows in
    the order of experts, [row, embed], the rows: unless the choices fill whole tiles of 8, going
    from one to the other is a copy. It reads and writes as many choices as their tiles hold, 8 for
    6, and what is to be summed, in f32 (DeepSeek-V2-Lite, 6 of 64 experts, and Mixtral, 2 of 8, on
    v5p; Gemma 4, 8 of 128 on 7x, has none; libtpu 0.0.42.1).

    With a scatter as the sort's gradient rows are picked in the order of their tokens, as ever, and
    then added one after another (`_added_pieces`). They are picked from the tokens themselves, so
    neither the dispatch nor its gradient has a row for each choice (MaxText of February 2025, v5p,
    14 of 56 experts, libtpu 0.0.11.1).

    A conversion, a multiplication and an addition each element of a slot; the sort of the experts'
    numbers is not counted.
    """
    if op.fused:
        return _sent_rows(op, split, sizes)
    one, other = op.tokens, op.output
    slots, tokens = (other, one) if op.dispatch else (one, other)
    item, choices = sizes.itemsize(slots.dtype), sizes.dims["choice"]
    elements = sizes.product(slots.dims, split)
    rows = elements * item
    own = sizes.product(tokens.dims, split) * sizes.itemsize(tokens.dtype)
    copied = choices % SUBLANES > 0
    stored = rows * sublane_tiles(choices) / choices
    summed = stored * SUM_BYTES / item if copied else rows
    pick, picks = (rows, rows), 2 if op.dispatch and op.weighted else 1
    added: Number = 0
    if op.dispatch:
        passes = [(own, stored), *([(stored, rows)] if copied else []), pick]
        if op.weighted:
            passes += [pick, *([(rows, summed)] if copied else []), (summed, 0)]
    else:
        terms = summed if op.weighted else stored
        passes = [pick, *([(rows, terms)] if copied else []), (terms, own)]
    if sizes.scatters and not op.weighted:
        passes = [pick] if op.dispatch else [pick, (rows, own)]
        added = 0 if op.dispatch else _added_pieces(elements, 1 / choices)
    elif sizes.scatters and op.dispatch:
        passes.append((rows, rows))
        added = _added_pieces(elements, 1)
    return VectorWork(
        sum(read for read, _ in passes),
        sum(written for _, written in passes),
        0.0 if op.dispatch and not op.weighted else (6 if op.dispatch else 3) * elements,
        gathered=2 * rows * picks,
        added=added,
    )


def _sent_rows(op: TokenRouting, split: Mapping[str, Axes], sizes: Sizes) -> VectorWork:
    """Return the work of a fused kernel's exchange: a row for each choice of each token served.

    A dispatch reads rows in the HBM of one device, and writes them in that of another. A combine
    sends them back likewise, then reads them and writes their sum for each token (SGLang-JAX,
    kernels/fused_moe/v1/kernel.py: `start_a2a_scatter`, `start_a2a_gather` and
    `acc_and_store_output`). The devices of a step have equally many.

    A kernel that takes a device's experts in turn has `expert_seconds` for each, in which all
    devices wait for one another while rows are on their way.
    """
    tokens = op.tokens if op.dispatch else op.output
    devices = sizes.group(tuple(axis for axes in split.values() for axis in axes))
    choices = sizes.dims[ROUTED] * sizes.dims["choice"] / devices
    width = sizes.dims[tokens.dims[-1]]
    rows = choices * width * sizes.itemsize(tokens.dtype)
    if op.dispatch:
        turns = block_passes(round(float(devices)), sizes) * sizes.dims["expert"] / devices
        return VectorWork(rows, rows, 0.0, sent=choices, waited=turns * op.expert_seconds)
    own = rows / sizes.dims["choice"]
    return VectorWork(2 * rows, rows + own, 3 * choices * width, sent=choices)


def _added_pieces(elements: Number, results: float) -> Number:
    """Return the pieces of 128 elements that a scatter of rows goes through.

    results: rows of the result for each one added.

    The rows come in the order of their indices. For each 384 of them, and again for each 224 rows
    of the result that it comes to, the core goes through all 384, and adds those that belong there
    (rows of 4096 on v5p, libtpu 0.0.11.1 and 0.0.42.1).
    """
    return elements / LANES * (1 + results * ROWS_ADDED / ROWS_HELD)


def with_picked_bias(
    op: Pointwise, work: VectorWork, split: Mapping[str, Axes], sizes: Sizes
) -> VectorWork:
    """Return the work of an element-wise group with what the bias of sorted experts takes besides.

    Each row has the bias of its expert, which is picked by its number: the rows are written, and
    read again. Its gradient is a scatter of all rows into as many as there are experts (MaxText's
    moe.py, `transform_bias`; gpt-oss on 7x, libtpu 0.0.42.1). Experts with a capacity are a batch,
    whose biases need neither.
    """
    biases = [t for t in (*op.inputs, *op.outputs) if len(t.dims) == 2 and t.dims[0] == "expert"]
    if not biases or sizes.capacity is None or "slot" not in op.main.dims:
        return work
    elements = sizes.product(op.main.dims, split)
    if op.reduces:
        return replace(work, added=work.added + OVERLAPPED * _added_pieces(elements, 0))
    rows = elements * sizes.itemsize(op.main.dtype)
    return replace(
        work,
        read_bytes=work.read_bytes + 2 * rows,
        write_bytes=work.write_bytes + rows,
        gathered=work.gathered + 2 * rows,
    )
