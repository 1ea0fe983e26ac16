"""The backward pass in two: what hands gradients on, and what makes those of weights.

Nothing but the optimizer waits for the second, so a pipeline's stage can do it when it would else
be idle (Qi et al., "Zero Bubble Pipeline Parallelism", arXiv:2401.10241, section 2). What it reads
is held until then.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from tpusim.graph.ops import Op, Scan
from tpusim.graph.tensor import Role, Tensor
from tpusim.phase import Phase


def deferred(ops: Sequence[Op], weights: Collection[str]) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """The operations of a backward pass that come first, and those that can come later.

    A scan is cut into one that saves what the other reads. Operations that make the gradient of a
    weight beside another one, as norms do, come first.
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
    """A backward scan without its products for weights, and the scan of those."""
    late = tuple(op for op in scan.body if _is_for_weights(op, weights))
    if not late or scan.sums:
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
            f"{scan.name}/w", scan.trips, late,
            loads=(*(t for t in scan.loads if t.name in read), *map(_kept, saves)),
            slices=tuple(pair for pair in scan.slices if pair[1].name in read),
            shared=tuple(tensor for tensor in scan.shared if tensor.name in read),
            deferred=True, phase=Phase.BACKWARD,
        ),
    )  # fmt: skip


def _kept(tensor: Tensor) -> Tensor:
    """What is read of a stack is no longer what an operation of the body makes."""
    return tensor if tensor.role is not Role.INPUT else replace(tensor, role=Role.ACTIVATION)
