"""Lines of the lowering table that compiled programs showed, before any measured run."""

from tpusim.lowering.collective_lowering import LAYER_AT_ONCE, Lowering, TableLine
from tpusim.program import Mode

PADDED_GATHERS = TableLine(
    Lowering(
        name="gathers as all-reduces",
        shown_by="plain scanned language model, 64- to 512-way, v4 4x4x4, v5p 4x4x4 and 8x8x8: "
        "gathers as all-reduces of a zero-padded buffer",
        seen_on=("v4 plain", "v5p plain"),
        gather=Mode.SYNC,
        gather_algorithm="all-reduce",
        reduce=Mode.SYNC,
        reduce_algorithm="all-reduce",
    ),
    "plain",
    dimensions=3,
    whole=True,
    min_size=64,
    observed=True,
)

UNROLLED_RINGS = TableLine(
    Lowering(
        name="unrolled rings",
        shown_by="plain model of D=1024, 4-way on v5e 2x2: the rings elsewhere, unrolled",
        seen_on=("v5e plain",),
        gather=Mode.RING,
        reduce=Mode.RING,
    ),
    "plain",
    whole=True,
    max_size=4,
    observed=True,
)

PLAIN_ROUTER_GATHERS = TableLine(
    Lowering(
        name="router gathers in plain programs",
        shown_by="plain 32B-like model on v5e 16x16, and one of 16 ways on v5e 4x4 (one of two "
        "slices): as MaxText's",
        seen_on=("v5e plain",),
        gather=Mode.ASYNC,
        gather_algorithm="nd",
        reduce=Mode.SYNC,
        reduce_algorithm="all-reduce",
    ),
    "plain",
    whole=True,
    observed=True,
)

LARGE_GROUPS_OF_EXPERTS = TableLine(
    Lowering(
        name="synchronous gathers, all-reduces over large groups",
        shown_by="layers of experts on v6e 16x16, fsdp 32 x expert 8: gathers and all-reduces over "
        "the 32, synchronous",
        seen_on=("v6e plain",),
        gather=Mode.SYNC,
        reduce=Mode.SYNC,
        reduce_algorithm="all-reduce",
    ),
    "plain",
    min_size=32,
    observed=True,
)

PADDED_SPARSECORE_GATHERS = TableLine(
    Lowering(
        name="SparseCore gathers as all-reduces",
        shown_by="plain scanned language model, 7x 4x8x8, groups over three dimensions: gathers as "
        "all-reduces, asynchronous on the SparseCore",
        seen_on=("7x plain",),
        gather=Mode.ASYNC,
        gather_algorithm="all-reduce",
        reduce=Mode.ASYNC,
        reduce_algorithm="all-reduce",
        overlap=LAYER_AT_ONCE,
        keys_algorithm="",
        offloaded=True,
    ),
    "plain",
    dimensions=3,
    observed=True,
)
