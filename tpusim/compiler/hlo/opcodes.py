"""Opcodes of HLO: those that move no data, and the vector-unit cost of the others."""

from collections.abc import Mapping

from tpusim.program import CollectiveKind

PASSIVE_OPCODES = frozenset({
    "bitcast", "tuple", "get-tuple-element", "parameter", "constant", "after-all", "partition-id",
    "replica-id", "opt-barrier", "add-dependency", "domain", "get-dimension-size",
})  # fmt: skip
"""Opcodes that take no time: names for existing data."""

MOVING_OPCODES = frozenset({
    "broadcast", "iota", "reshape", "transpose", "slice", "dynamic-slice", "pad", "concatenate",
    "copy", "reverse", "bitcast-convert", "dynamic-update-slice",
})  # fmt: skip
"""Opcodes that move elements and compute nothing."""

COLLECTIVE_KINDS: Mapping[str, CollectiveKind] = {
    "all-gather": CollectiveKind.ALL_GATHER,
    "all-reduce": CollectiveKind.ALL_REDUCE,
    "reduce-scatter": CollectiveKind.REDUCE_SCATTER,
    "all-to-all": CollectiveKind.ALL_TO_ALL,
    "ragged-all-to-all": CollectiveKind.ALL_TO_ALL,
    "collective-permute": CollectiveKind.PERMUTE,
    "collective-broadcast": CollectiveKind.BROADCAST,
}
"""Collectives of HLO by opcode."""

COLLECTIVE_OPCODES = frozenset(COLLECTIVE_KINDS)
"""Opcodes whose transfers are not counted as the core's."""

FREE_TARGETS = frozenset({
    "AllocateBuffer", "ConcatBitcast", "Sharding", "GatherScatterIndicesBitpacked",
    "AssumeGatherIndicesInBound", "SliceId", "AsyncCollectiveStart", "AsyncCollectiveDone",
    "PrepareAsyncCallStart", "PrepareAsyncCallDone", "SPMDFullToShardShape",
    "SPMDShardToFullShape", "annotate_device_placement", "X64Combine", "X64SplitLow",
    "X64SplitHigh",
})  # fmt: skip
"""Custom calls of the TPU compiler that are markers without work."""

KERNEL_TARGETS = frozenset({"tpu_custom_call", "mosaic", "mosaic_tpu"})
"""Custom-call targets that are Pallas kernels."""

TARGET_WEIGHTS = {"TopK": 8.0, "PartialReduce": 2.0}
"""Custom calls that the vector unit runs, with operations per element of the first operand."""

_OPCODE_WEIGHTS = {
    **dict.fromkeys(PASSIVE_OPCODES | MOVING_OPCODES | COLLECTIVE_OPCODES | {"custom-call"}, 0.0),
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


def vector_weight(opcode: str) -> float | None:
    """Return vector operations per element of the result; None for an unknown opcode.

    They are in proportion to those of a plan's groups: a softmax of 10, an exponential of 6.
    """
    return _OPCODE_WEIGHTS.get(opcode)
