"""The split backward pass: gradients of activations first, those of weights later.

Only the optimizer depends on the second half, so a pipeline's stage can run it when it would
otherwise be idle (Qi et al., "Zero Bubble Pipeline Parallelism", arXiv:2401.10241, section 2). The
tensors that it reads are held until then.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from tpusim.base.phase import Phase
from tpusim.graph.ops import Op, Scan
from tpusim.graph.tensor import Tensor, TensorRole


def split_backward(
    ops: Sequence[Op], weights: Collection[str]
) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """Return the operations of a backward pass that run first, and those that can run later.

    A scan is split into two, the first of which saves the residuals that the second reads.
    Operations that make the gradient of a weight and another one, as norms do, run first.

    ops: operations of the backward pass.
    weights: names of the weights.
    """
    first: list[Op] = []
    later: list[Op] = []
    for op in ops:
        if isinstance(op, Scan):
            parts = _halves(op, weights)
            first.append(parts[0])
            later.extend(parts[1:])
        else:
            (later if _is_for_weights(op, weights) else first).append(op)
    return tuple(first), tuple(later)


def _is_for_weights(op: Op, weights: Collection[str]) -> bool:
    return bool(op.outputs) and all(tensor.primal in weights for tensor in op.outputs)


def _halves(scan: Scan, weights: Collection[str]) -> tuple[Scan, ...]:
    """Return a backward scan without its weight-gradient matmuls, and the scan of those."""
    late = tuple(op for op in scan.body if _is_for_weights(op, weights))
    if not late or any(inside.primal in weights for inside, _ in scan.sums):
        return (scan,)
    rest = tuple(op for op in scan.body if op not in late)
    made = {tensor.name: tensor for op in rest for tensor in op.outputs}
    made |= {inside.name: inside for _, inside, _, _ in scan.carries}
    own = {tensor.name for op in late for tensor in op.outputs}
    read = {t.name: t for op in late for t in op.inputs if t.name not in own}
    saves = tuple(made[name] for name in read if name in made)
    still = {tensor.name for op in rest for tensor in op.inputs}
    return (
        replace(
            scan, body=rest, saves=saves, loads=tuple(t for t in scan.loads if t.name in still)
        ),
        Scan(
            f"{scan.name}/w",
            scan.trips,
            late,
            loads=(*(t for t in scan.loads if t.name in read), *map(_read_from_stack, saves)),
            slices=tuple(pair for pair in scan.slices if pair[1].name in read),
            shared=tuple(tensor for tensor in scan.shared if tensor.name in read),
            weights_only=True,
            phase=Phase.BACKWARD,
        ),
    )


def _read_from_stack(tensor: Tensor) -> Tensor:
    """Return the tensor as it is read from a stack."""
    role = TensorRole.ACTIVATION if tensor.role is TensorRole.INPUT else tensor.role
    return replace(tensor, role=role)
