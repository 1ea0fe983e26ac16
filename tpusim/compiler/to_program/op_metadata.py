"""Operation metadata: name, phase and scope of an instruction, from `op_name`.

JAX writes the transformations of an operation into its name: `jvp(...)` if it is differentiated,
`transpose(jvp(...))` in its backward pass, `rematted_computation` if `jax.checkpoint` recomputes it
(jax 0.10.2; `jax.named_scope` and function names stand between).
"""

import re
from collections.abc import Iterable

from tpusim.base.phase import Phase
from tpusim.compiler.hlo.attributes import call_target, called_computations, op_name
from tpusim.compiler.hlo.module import Computation, HloModule, Instruction
from tpusim.compiler.hlo.opcodes import KERNEL_TARGETS
from tpusim.compiler.work.dots import DOT_OPCODES

_JIT_PREFIXES = ("jit(", "pjit(")
"""Prefixes of operation names, which arguments and the compiler's own operations lack."""
_ARGUMENT = re.compile(r"\w*[\[.]")
"""Beginning of the name of a leaf of an argument, such as `state[0]['layers/wq']`."""
REMAT_SCOPES = "checkpoint", "rematted_computation"
"""JAX's scopes of operations that `jax.checkpoint` recomputes, one in the other."""
_RECOMPUTED = re.compile(f"(?:^|/){'/'.join(REMAT_SCOPES)}(?:/|$)")
_EXPORTED = "/call_exported/"
"""JAX's scope of an exported program, which has names of its own."""
_BACKWARD = re.compile(r"(?:^|/)(?:\w+\()*transpose\(jvp\(")
_FORWARD = re.compile(r"(?:^|/)(?:\w+\()*jvp\(")
_BACKWARD_KERNEL = re.compile(r"/(?:splash|flash)_m[hq]a_(?:bwd|dq|dkv)[^/]*/pallas_call$")
"""Names of kernels of a backward pass: under `jax.checkpoint`, JAX 0.5 puts what a function's own
gradient (`jax.custom_vjp`) calls into the scope of what is recomputed."""
_WRAPPED = re.compile(r"^(?:jit|pjit|jvp|vmap|transpose|remat|checkpoint|shard_map)\((.*)\)$")
_CALLS = ("closed_call", "call_exported", "<unnamed function>")
_JAX_SCOPES = frozenset(("", "while", "body", "cond", *REMAT_SCOPES, *_CALLS))


def is_training(names: Iterable[str]) -> bool:
    """Return True if any name is that of a backward pass."""
    return any(_is_within(_BACKWARD, name) for name in names)


def is_recomputed(name: str) -> bool:
    """Return True for the name of an operation that `jax.checkpoint` recomputes."""
    return _is_within(_RECOMPUTED, name)


def _is_within(scopes: re.Pattern[str], name: str) -> bool:
    """Return True if JAX wrote these scopes into a name: whole parts, and of no argument."""
    return bool(scopes.search(name) and not _ARGUMENT.match(name))


def phase_of(name: str, training: bool) -> Phase | None:
    """Return the phase of an operation; None if its name has none.

    Operations of a training step outside the differentiated function are the optimizer's, except
    those from which that function is computed (`before_forward`).
    """
    if not name:
        return None
    if training and _BACKWARD_KERNEL.search(name):
        return Phase.BACKWARD
    if is_recomputed(name):
        return Phase.RECOMPUTE
    if _is_within(_BACKWARD, name):
        return Phase.BACKWARD
    if _is_within(_FORWARD, name) or not training:
        return Phase.FORWARD
    return Phase.OPTIMIZER if name.startswith(_JIT_PREFIXES) else None


def before_forward(computation: Computation) -> frozenset[str]:
    """Return the instructions from which both passes are computed, such as casts of weights.

    They are outside the differentiated function as the optimizer's are, but need no gradient; so is
    the softmax of a loss with a gradient of its own, which only the backward pass reads. (Of two
    steps in one program, the second's forward pass is computed from the first's optimizer.)
    """
    after = _after_backward(computation)
    wanted: set[str] = set()
    for instruction in reversed(computation.instructions):
        phase = phase_of(op_name(instruction), training=True)
        if phase not in (None, Phase.OPTIMIZER) or instruction.name in wanted:
            wanted.update(instruction.operands)
    return frozenset(wanted - after)


def _after_backward(computation: Computation) -> set[str]:
    """Return all that depends on the backward pass; constants have its name, but do not count."""
    computed: set[str] = set()
    after: set[str] = set()
    for instruction in computation.instructions:
        if instruction.opcode == "parameter" or not computed.isdisjoint(instruction.operands):
            computed.add(instruction.name)
            phase = phase_of(op_name(instruction), training=True)
            if phase in _BACKWARD_PHASES or not after.isdisjoint(instruction.operands):
                after.add(instruction.name)
    return after


_BACKWARD_PHASES = (Phase.BACKWARD, Phase.RECOMPUTE)


def scope_of(name: str) -> str:
    """Return the name without the scopes that JAX adds.

    >>> scope_of("jit(step)/transpose(jvp(mlp))/while/body/closed_call/bsd,df->bsf/dot_general")
    'mlp/bsd,df->bsf/dot_general'
    """
    name = name.rpartition(_EXPORTED)[2]
    if not name.startswith(_JIT_PREFIXES):
        return name
    parts = (_unwrapped(part) for part in name.split("/")[1:])
    return "/".join(part for part in parts if part not in _JAX_SCOPES)


def _unwrapped(part: str) -> str:
    found = _WRAPPED.match(part)
    while found:
        part = found[1]
        found = _WRAPPED.match(part)
    return part


MAX_NAME_DISTANCE = 8
"""Instructions back to search for a name; a farther one has little to do with it."""


def name_bearer(module: HloModule, where: Computation, instruction: Instruction) -> Instruction:
    """Return the instruction whose name and line an operation takes; itself if none has a name.

    A fusion takes the name of its dot, then its own, then any other inside: the compiler names it
    by its last instruction, which may be of another line or phase. A copy or a kernel that the
    compiler added takes the name of the instruction that made its operand.
    """
    if _is_compilers_kernel(instruction):
        return _named_operand(where, instruction) or instruction
    fused = instruction.opcode == "fusion"
    bodies = called_computations(module, instruction, "calls") if fused else ()
    inside = [each for body in bodies for each in body.instructions]
    dots = [each for each in inside if each.opcode in DOT_OPCODES]
    for each in (*dots, instruction, *reversed(inside)):
        if op_name(each):
            return each
    return _named_operand(where, instruction) or instruction


def _is_compilers_kernel(instruction: Instruction) -> bool:
    """Return True for a kernel that the compiler wrote: its name is that of the instruction."""
    if instruction.opcode != "custom-call" or call_target(instruction) not in KERNEL_TARGETS:
        return False
    return op_name(instruction) == _NUMBER.sub("", instruction.name)


_NUMBER = re.compile(r"(?:\.\d+)+$")


def _named_operand(where: Computation, instruction: Instruction) -> Instruction | None:
    """Return the nearest instruction with a name, back along first operands."""
    at = instruction
    for _ in range(MAX_NAME_DISTANCE):
        if not at.operands or at.operands[0] not in where:
            return None
        at = where[at.operands[0]]
        if op_name(at):
            return at
    return None
