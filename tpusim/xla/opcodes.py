"""Opcodes of HLO: which move nothing, and what the others cost the vector unit."""

from collections.abc import Mapping

from tpusim.program import CollectiveKind

PASSIVE = frozenset({
    "bitcast", "tuple", "get-tuple-element", "parameter", "constant", "after-all", "partition-id",
    "replica-id", "opt-barrier", "add-dependency", "domain", "get-dimension-size",
})  # fmt: skip
"""Opcodes that take no time: names for what is there already."""

MOVING = frozenset({
    "broadcast", "iota", "reshape", "transpose", "slice", "dynamic-slice", "pad", "concatenate",
    "copy", "reverse", "bitcast-convert", "dynamic-update-slice",
})  # fmt: skip
"""Opcodes that move elements and compute nothing."""

KINDS: Mapping[str, CollectiveKind] = {
    "all-gather": CollectiveKind.ALL_GATHER,
    "all-reduce": CollectiveKind.ALL_REDUCE,
    "reduce-scatter": CollectiveKind.REDUCE_SCATTER,
    "all-to-all": CollectiveKind.ALL_TO_ALL,
    "ragged-all-to-all": CollectiveKind.ALL_TO_ALL,
    "collective-permute": CollectiveKind.PERMUTE,
    "collective-broadcast": CollectiveKind.BROADCAST,
}
"""The collectives of HLO by opcode."""

COLLECTIVES = frozenset(KINDS)
"""What they move is not counted as the core's."""

FREE_TARGETS = frozenset({
    "AllocateBuffer", "ConcatBitcast", "Sharding", "GatherScatterIndicesBitpacked",
    "AssumeGatherIndicesInBound", "SliceId", "AsyncCollectiveStart", "AsyncCollectiveDone",
    "PrepareAsyncCallStart", "PrepareAsyncCallDone", "SPMDFullToShardShape",
    "SPMDShardToFullShape", "annotate_device_placement", "X64Combine", "X64SplitLow",
    "X64SplitHigh",
})  # fmt: skip
"""Custom calls of the TPU compiler that are marks, and no work."""

KERNELS = frozenset({"tpu_custom_call", "mosaic", "mosaic_tpu"})
"""Targets of custom calls that are Pallas kernels."""

TARGET_WEIGHTS = {"TopK": 8.0, "PartialReduce": 2.0}
"""Custom calls that the vector unit runs, with operations an element of their first operand."""

_WEIGHTS = {
    **dict.fromkeys(PASSIVE | MOVING | COLLECTIVES | {"custom-call"}, 0.0),
    **dict.fromkeys(
        ("add", "subtract", "multiply", "maximum", "minimum", "negate", "abs", "sign", "compare",
         "select", "and", "or", "xor", "not", "clamp", "convert", "floor", "ceil", "is-finite",
         "round-nearest-afz", "round-nearest-even", "reduce-precision", "shift-left",
         "shift-right-logical", "shift-right-arithmetic", "popcnt", "count-leading-zeros",
         "gather", "map", "real", "imag", "complex", "stochastic-convert"), 1.0),
    **dict.fromkeys(("divide", "sqrt", "rsqrt", "cbrt", "remainder"), 2.0),
    **dict.fromkeys(("exponential", "log", "exponential-minus-one", "log-plus-one"), 6.0),
    **dict.fromkeys(("tanh", "logistic", "erf"), 8.0),
    **dict.fromkeys(("power", "sine", "cosine", "tan", "atan2"), 12.0),
    **dict.fromkeys(("rng", "rng-bit-generator", "rng-get-and-update-state"), 20.0),
}  # fmt: skip


def weight(opcode: str) -> float | None:
    """Vector operations an element of its result; None for an opcode that is not known.

    They are in proportion to those of a plan's groups: a softmax of 10, an exponential of 6.
    """
    return _WEIGHTS.get(opcode)
