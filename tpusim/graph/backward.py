"""Reverse-mode differentiation of a graph: the training step from the forward pass.

The sweep goes through the operations backwards, asks each for its transposes, and adds up the
contributions to the gradient of a tensor that was read more than once. A scan becomes a second scan
over its transposed body, with the recomputed operations in front; a tensor that its iterations
share gets the sum of their gradients, in the dtype in which weights are stored.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from tpusim.base.phase import Phase
from tpusim.graph.graph import Graph
from tpusim.graph.ops import Op, Scan
from tpusim.graph.pointwise import Pointwise
from tpusim.graph.remat import Remat, check_saved_names, recompute
from tpusim.graph.tensor import STORED, Tensor, TensorRole


def training_step(graph: Graph, remat: Remat) -> Graph:
    """Return the forward and backward pass of `graph`, with the gradient of every parameter.

    Raise PlanError if `remat` saves a tensor that no layer makes.
    """
    bodies = [op.body for op in graph.ops if isinstance(op, Scan) and op.over_layers]
    check_saved_names(
        remat, (t for body in bodies for op in body for t in (*op.inputs, *op.outputs))
    )
    loss = graph.loss
    start = replace(loss, name=f"d({loss.name})", role=TensorRole.INPUT, primal=loss.name)
    forward, sweep = _differentiate(graph.ops, {loss.name: start}, remat)
    return replace(
        graph, ops=forward + tuple(sweep.ops), gradients=tuple(sweep.parameter_gradients.items())
    )


@dataclass(slots=True)
class _GradientSweep:
    """The backward operations and gradients made so far.

    uses: reads of each tensor, by name.
    contributions: contributions to the gradient of each tensor, by the tensor's name.
    """

    uses: Counter[str]
    ops: list[Op] = field(default_factory=list)
    contributions: dict[str, list[Tensor]] = field(default_factory=dict)
    parameter_gradients: dict[str, Tensor] = field(default_factory=dict)

    def contribution(self, of: Tensor, by: str) -> Tensor:
        """Return a new tensor for the contribution of operation `by` to the gradient of `of`."""
        name = (
            f"d({of.name})" if self.uses[of.name] == 1 else f"d({of.name})~{by.rpartition('/')[2]}"
        )
        made = of.gradient(name)
        self.contributions.setdefault(of.name, []).append(made)
        return made

    def total(self, tensor: Tensor) -> Tensor | None:
        """Return the gradient of `tensor`, the sum of its contributions; None if it has none."""
        parts = [part.view(tensor.dims) for part in self.contributions.get(tensor.name, ())]
        if len(parts) < 2:
            return parts[0] if parts else None
        made = _cotangent(tensor)
        if any(part.dtype == STORED for part in parts):
            made = replace(made, dtype=STORED)
        self.ops.append(
            Pointwise(
                f"{tensor.name}/dsum",
                tuple(parts),
                (made,),
                len(parts) - 1,
                linear=True,
                keeps="",
                phase=Phase.BACKWARD,
            )
        )
        self.contributions[tensor.name] = [made]
        return made


def _differentiate(
    ops: tuple[Op, ...], seed: dict[str, Tensor], remat: Remat
) -> tuple[tuple[Op, ...], _GradientSweep]:
    """Return the forward operations, with what scans save, and the sweep of the backward pass.

    seed: gradients that are given, by the name of their tensor.
    """
    reads = (t.name for op in ops for t in {t.name: t for t in op.inputs}.values())
    sweep = _GradientSweep(
        Counter(reads), contributions={name: [made] for name, made in seed.items()}
    )
    forward = list(ops)
    for place, op in reversed(list(enumerate(ops))):
        given = {
            tensor.name: total
            for tensor in op.outputs
            if (total := sweep.total(tensor)) is not None
        }
        if not given:
            continue
        if isinstance(op, Scan):
            forward[place] = _transpose_scan(op, given, sweep, remat)
        elif isinstance(op, Pointwise) and op.linear:
            _pass_through(op, given, sweep)
        else:
            sweep.ops.extend(
                op.transpose(given, lambda tensor, by=op.name: sweep.contribution(tensor, by))  # type: ignore[misc]
            )
    for op in ops:
        for tensor in op.inputs:
            if tensor.role is TensorRole.PARAM and tensor.name not in sweep.parameter_gradients:
                total = sweep.total(tensor)
                if total is not None:
                    sweep.parameter_gradients[tensor.name] = total
    return tuple(forward), sweep


def _pass_through(op: Pointwise, given: dict[str, Tensor], sweep: _GradientSweep) -> None:
    """Pass the gradient of a sum to each of its inputs: unchanged, or summed where one is repeated.

    A bias, or an embedding of a time, lacks some of the dimensions of the sum.
    """
    gradient = given[op.outputs[0].name]
    for tensor in op.inputs:
        if not tensor.differentiable:
            continue
        if len(tensor.dims) == len(gradient.dims):
            sweep.contributions.setdefault(tensor.name, []).append(gradient)
            continue
        made = sweep.contribution(tensor, op.name)
        name = f"{op.name}/dw{op.inputs.index(tensor)}"
        sweep.ops.append(Pointwise(name, (gradient,), (made,), 1.0, keeps="", phase=Phase.BACKWARD))


def _transpose_scan(
    op: Scan, given: dict[str, Tensor], sweep: _GradientSweep, remat: Remat
) -> Scan:
    """Add the backward scan to the sweep; return the forward one with the tensors to save."""
    remat = Remat() if op.recomputed else remat
    op = replace(op, body=tuple(remat.with_residuals(one) for one in op.body))
    carried = {inside.name: _cotangent(inside) for _, _, inside, _ in op.carries}
    added = {inside.name: given[outside.name] for inside, outside in op.sums}
    written = {
        inside.name: replace(_cotangent(inside), role=given[outside.name].role)
        for inside, outside in op.stacks
    }
    _, inner = _differentiate(op.body, carried | written | added, remat)
    carries = _carried_back(op, given, carried, inner, sweep)
    stacks = _gradients(op, inner, sweep, ((part, whole) for whole, part in op.slices))
    sums = _gradients(op, inner, sweep, ((t, replace(t, dtype=STORED)) for t in op.shared))
    again, kept = recompute(op.body, inner.ops, remat.keeps)
    body = _block_by_block(again, inner.ops)
    parts = (*((given[o.name], written[i.name]) for i, o in op.stacks), *op.slices)
    name, phase = f"{op.name}/d", Phase.BACKWARD
    back = Scan(name, op.trips, body, carries, stacks=stacks, sums=sums, phase=phase)
    back = _with_reads(back, kept, parts, (*op.shared, *added.values()))
    sweep.ops.append(back)
    shared = {tensor.name for tensor in op.shared}
    own = {name: t for name, t in inner.parameter_gradients.items() if name not in shared}
    sweep.parameter_gradients |= own
    return replace(op, saves=back.loads)


def _with_reads(
    back: Scan,
    kept: Iterable[Tensor],
    parts: Iterable[tuple[Tensor, Tensor]],
    shared: Iterable[Tensor],
) -> Scan:
    """Return the backward scan with the slices, loads and shared tensors that its body reads."""
    read = {tensor.name for one in back.body for tensor in one.inputs}
    slices = tuple(pair for pair in parts if pair[1].name in read)
    sliced = {part.name for _, part in slices}
    shared = tuple(t for t in shared if t.name in read)
    outside = sliced | {tensor.name for tensor in shared}
    loads = tuple(t for t in kept if t.name not in outside)
    return replace(back, slices=slices, loads=loads, shared=shared)


def _carried_back(
    op: Scan,
    given: dict[str, Tensor],
    carried: dict[str, Tensor],
    inner: _GradientSweep,
    sweep: _GradientSweep,
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], ...]:
    """Return the gradients that the backward scan carries, one for each forward carry."""
    pairs = []
    for outer_in, inner_in, inner_out, outer_out in op.carries:
        total = inner.total(inner_in)
        if total is None or outer_out.name not in given:
            raise ValueError(f"{op.name}: no gradient reaches {inner_in.name}")
        before, after = given[outer_out.name], sweep.contribution(outer_in, op.name)
        pairs.append((before, carried[inner_out.name], total, after))
    return tuple(pairs)


def _gradients(
    op: Scan, inner: _GradientSweep, sweep: _GradientSweep, tensors: Iterable[tuple[Tensor, Tensor]]
) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return, for each (inside, outside), the gradient of an iteration and that of the scan."""
    pairs = []
    for inside, outside in tensors:
        total = inner.total(inside) if outside.role is not TensorRole.INPUT else None
        if total is not None:
            pairs.append((total, sweep.contribution(outside, op.name)))
    return tuple(pairs)


def _cotangent(tensor: Tensor) -> Tensor:
    return tensor.gradient(f"d({tensor.name})")


def _block_by_block(again: Sequence[Op], backward: Sequence[Op]) -> tuple[Op, ...]:
    """Return the backward pass, with the recomputation of each block right before it.

    A block is one layer of a pattern: the operations whose names differ in their last part only.
    All of its inputs are saved, so none of its results is needed before its own backward pass.
    """
    waiting: dict[str, list[Op]] = {}
    for op in again:
        waiting.setdefault(_block(op.name), []).append(op)
    maker = {tensor.name: _block(op.name) for op in again for tensor in op.outputs}
    result: list[Op] = []

    def recompute_block(block: str) -> None:
        for op in waiting.pop(block, ()):
            for tensor in op.inputs:
                recompute_block(maker.get(tensor.name, ""))
            result.append(op)

    for op in backward:
        for block in [block for block in waiting if op.name.startswith(f"{block}/")]:
            recompute_block(block)
        for tensor in op.inputs:
            recompute_block(maker.get(tensor.name, ""))
        result.append(op)
    return tuple(result)


def _block(name: str) -> str:
    return name.rpartition("/")[0]
