"""The kind of a profiled operation, in the words of a simulated step."""

import re

from tpusim.program import CollectiveKind, TransferKind

MATMUL, ATTENTION, VECTOR = "matmul", "attention", "vector"
HOST, IDLE, INPUT, SLOW_STEPS = "host", "idle", "input", "slow steps"
KERNEL, CONTROL, COLLECTIVE = "kernel", "control flow", "collective"
OTHER_PROGRAMS = "other programs"

COLLECTIVES = (*map(str, CollectiveKind), COLLECTIVE)
WAITS = (*COLLECTIVES, *map(str, TransferKind), HOST, IDLE, INPUT, SLOW_STEPS, OTHER_PROGRAMS)
"""Kinds in which a core does no work of its own."""

_FIRST = sorted(CollectiveKind, key=lambda kind: kind is not CollectiveKind.REDUCE_SCATTER)
_ATTENTION = re.compile(r"attention|splash|flash|(?:^|_)m[hq]a_")
_MATMUL = re.compile(r"matmul|gemm|gmm")
_BY_CATEGORY = (
    (re.compile("convolution|^dot"), MATMUL),
    (re.compile("infeed"), INPUT),
    (re.compile("^(?:send|recv|host|outfeed)"), HOST),
    (re.compile("-(?:start|done|update)$"), str(TransferKind.DMA)),
    (re.compile("^(?:while|conditional|call)$"), CONTROL),
)


def kind_of(category: str, name: str) -> str:
    """Return the kind of an operation that XProf puts into a category.

    name: of its instruction and its scope, which tell kernels (custom calls) apart.

    Without a category it is that of the opcode that the instruction is named after.

    >>> kind_of("convolution fusion", "fusion.1"), kind_of("all-gather-done", "all-gather-done.2")
    ('matmul', 'all-gather')
    """
    instruction = name.partition(" ")[0]
    category = category or instruction.partition(".")[0]
    for kind in _FIRST:
        if kind in category or kind in instruction:
            return str(kind)
    if "collective" in category or instruction.startswith("async-collective"):
        return COLLECTIVE
    if category == "custom-call":
        for words in (instruction, name):
            if _ATTENTION.search(words):
                return ATTENTION
            if _MATMUL.search(words):
                return MATMUL
        return KERNEL
    return next((kind for known, kind in _BY_CATEGORY if known.search(category)), VECTOR)
