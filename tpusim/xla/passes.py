"""Which pass an instruction belongs to, and what the user's code calls it: from `op_name`.

JAX writes the transformations that an operation went through into its name: `jvp(...)` for what is
differentiated, `transpose(jvp(...))` for its backward pass, `rematted_computation` for what
`jax.checkpoint` computes again (jax 0.10.2; `jax.named_scope` and function names stand between).
"""

import re
from collections.abc import Iterable

from tpusim.phase import Phase
from tpusim.xla.attributes import op_name
from tpusim.xla.module import Computation

_CODE = ("jit(", "pjit(")
"""How the names of operations begin; those of arguments and of the compiler's own do not."""
REMATTED = "rematted_computation"
"""What JAX calls what a `jax.checkpoint` does again."""
_BACKWARD = "transpose(jvp("
_FORWARD = "jvp("
_WRAPPED = re.compile(r"^(?:jit|pjit|jvp|vmap|transpose|remat|checkpoint|shard_map)\((.*)\)$")
_PLAIN = frozenset(
    ("", "while", "body", "cond", "closed_call", "checkpoint", REMATTED, "<unnamed function>")
)


def is_training(names: Iterable[str]) -> bool:
    """Whether anything of the program is a backward pass."""
    return any(_BACKWARD in name for name in names)


def phase_of(name: str, training: bool) -> Phase | None:
    """The pass of an operation; None where its name does not say.

    What a training step does outside the differentiated function is its optimizer's, but for what
    that function is made from (`before_forward`).
    """
    if not name:
        return None
    if REMATTED in name:
        return Phase.RECOMPUTE
    if _BACKWARD in name:
        return Phase.BACKWARD
    if _FORWARD in name or not training:
        return Phase.FORWARD
    return Phase.OPTIMIZER if name.startswith(_CODE) else None


def before_forward(computation: Computation) -> frozenset[str]:
    """Instructions that the forward pass of a training step is made from: casts of weights, say.

    They stand outside the differentiated function as the optimizer's do, but need no gradient. (Of
    two steps in one program, the second's forward pass is made from the first's optimizer.)
    """
    late = _late(computation)
    wanted: set[str] = set()
    for instruction in reversed(computation.instructions):
        forward = phase_of(op_name(instruction), training=True) is Phase.FORWARD
        if forward or instruction.name in wanted:
            wanted.update(instruction.operands)
    return frozenset(wanted - late)


def _late(computation: Computation) -> set[str]:
    """What depends on the backward pass; constants bear its name too, and do not count."""
    given: set[str] = set()
    late: set[str] = set()
    for instruction in computation.instructions:
        if instruction.opcode == "parameter" or not given.isdisjoint(instruction.operands):
            given.add(instruction.name)
            phase = phase_of(op_name(instruction), training=True)
            if phase in _LATE or not late.isdisjoint(instruction.operands):
                late.add(instruction.name)
    return late


_LATE = (Phase.BACKWARD, Phase.RECOMPUTE)


def scope_of(name: str) -> str:
    """The name without what JAX put around it.

    >>> scope_of("jit(step)/transpose(jvp(mlp))/while/body/closed_call/bsd,df->bsf/dot_general")
    'mlp/bsd,df->bsf/dot_general'
    """
    if not name.startswith(_CODE):
        return name
    parts = (_unwrapped(part) for part in name.split("/")[1:])
    return "/".join(part for part in parts if part not in _PLAIN)


def _unwrapped(part: str) -> str:
    found = _WRAPPED.match(part)
    while found:
        part = found[1]
        found = _WRAPPED.match(part)
    return part
