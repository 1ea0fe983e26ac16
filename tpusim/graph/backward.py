"""Reverse-mode differentiation of a graph: the training step from the forward pass.

The sweep goes through the operations backwards, asks each for its transposes, and adds up the
contributions to the gradient of a tensor that was read more than once. A scan becomes a second scan
over its transposed body, with the recomputed operations in front; a tensor that its iterations
share gets the sum of their gradients, of a weight in the dtype in which weights are stored unless
each iteration reduces its own.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tpusim.base.phase import Phase
from tpusim.graph.contractions import Einsum
from tpusim.graph.graph import LOSS, Graph
from tpusim.graph.ops import Op, Scan
from tpusim.graph.pointwise import Pointwise
from tpusim.graph.remat import Remat, check_saved_names, recompute
from tpusim.graph.tensor import ADAPTER_RANK, STORED, Tensor, TensorRole


def training_step(
    graph: Graph,
    remat: Remat,
    starts: Sequence[Tensor] | None = None,
    wanted: Iterable[Tensor] = (),
) -> Graph:
    """Return the forward and backward pass of `graph`, with the gradient of every parameter.

    starts: gradients that are given, each of its `primal`; that of the loss where it is not given.
    wanted: tensors of outside whose gradients are made as well, `d(tensor)`.

    Raise PlanError if `remat` saves a tensor that no layer makes.
    """
    bodies = [op.body for op in graph.ops if isinstance(op, Scan) and op.over_layers]
    check_saved_names(
        remat, (t for body in bodies for op in body for t in (*op.inputs, *op.outputs))
    )
    loss = graph.loss
    if starts is None:
        starts = (replace(loss, name=f"d({loss.name})", role=TensorRole.INPUT, primal=loss.name),)
    seed = {start.primal: [start] for start in starts}
    forward, sweep = _differentiate(graph.ops, seed, remat, tuple(seed))
    for tensor in wanted:
        sweep.total(tensor)
    return replace(
        graph,
        ops=forward + tuple(sweep.ops),
        outputs=((LOSS, loss),),
        gradients=tuple(sweep.parameter_gradients.items()),
    )


@dataclass(slots=True)
class _GradientSweep:
    """The backward operations and gradients made so far.

    uses: reads of each tensor, by name; two of an operation that reads it twice.
    contributions: contributions to the gradient of each tensor, by the tensor's name.
    in_turn: names of tensors whose contributions are added one after the other, as JAX does. XLA
        adds partial ones up before it reduces them, but not those behind a whole one, such as an
        adapter's (adapters on one or all projections of a layer, v5e 4x4, mesh 4 x 4, libtpu
        0.0.42.1).
    """

    uses: Counter[str]
    in_turn: frozenset[str] = frozenset()
    ops: list[Op] = field(default_factory=list)
    contributions: dict[str, list[Tensor]] = field(default_factory=dict)
    parameter_gradients: dict[str, Tensor] = field(default_factory=dict)

    def contribution(self, of: Tensor, by: str) -> Tensor:
        """Return a new tensor for the contribution of operation `by` to the gradient of `of`.

        An operation that reads a tensor twice (keys that are the values too) makes two.
        """
        others = self.contributions.setdefault(of.name, [])
        name = f"d({of.name})"
        if self.uses[of.name] > 1:
            name += f"~{by.rpartition('/')[2]}"
        if name in {other.name for other in others}:
            name += f"~{len(others)}"
        others.append(of.gradient(name))
        return others[-1]

    def total(self, tensor: Tensor, within: str = "") -> Tensor | None:
        """Return the gradient of `tensor`, the sum of its contributions; None if it has none.

        within: the scan that adds contributions of its own up, for a tensor from outside of it.
        """
        parts = [part.view(tensor.dims) for part in self.contributions.get(tensor.name, ())]
        if len(parts) < 2:
            return parts[0] if parts else None
        made = _cotangent(tensor)
        if within:
            made = replace(made, name=f"{made.name}~{within}")
        if any(part.dtype == STORED for part in parts):
            made = replace(made, dtype=STORED)
        name = f"{within}/{tensor.name}/dsum" if within else f"{tensor.name}/dsum"
        if tensor.name in self.in_turn:
            for place in range(1, len(parts) - 1):
                between = replace(made, name=f"{made.name}~sum{place}")
                added = replace(_sum(f"{name}{place}", parts[:2], between), inlined=True)
                self.ops.insert(self._after(parts[:2]), added)
                parts[:2] = [between]
        self.ops.append(_sum(name, parts, made))
        self.contributions[tensor.name] = [made]
        return made

    def _after(self, parts: Iterable[Tensor]) -> int:
        """Return the place behind the operations that make some tensors."""
        names = {part.name for part in parts}
        made = (names.isdisjoint(tensor.name for tensor in op.outputs) for op in self.ops)
        return max((place + 1 for place, apart in enumerate(made) if not apart), default=0)


def _sum(name: str, parts: Sequence[Tensor], made: Tensor) -> Pointwise:
    flops, phase = len(parts) - 1, Phase.BACKWARD
    return Pointwise(name, tuple(parts), (made,), flops, linear=True, keeps="", phase=phase)


def _differentiate(
    ops: tuple[Op, ...],
    seed: dict[str, list[Tensor]],
    remat: Remat,
    left: Sequence[str] = (),
) -> tuple[tuple[Op, ...], _GradientSweep]:
    """Return the forward operations, with what scans save, and the sweep of the backward pass.

    seed: gradients that are given, by the name of their tensor.
    left: tensors that others read too.
    """
    reads = [tensor.name for op in ops for tensor in op.inputs]
    adapters = (op for op in ops if isinstance(op, Einsum) and ADAPTER_RANK in op.rhs.dims)
    adapted = frozenset(t.name for op in adapters for t in op.inputs)
    sweep = _GradientSweep(Counter([*reads, *left]), adapted, contributions=seed)
    forward = list(ops)
    for place, op in reversed(list(enumerate(ops))):
        given = {
            tensor.name: total
            for tensor in op.outputs
            if not tensor.frozen and (total := sweep.total(tensor)) is not None
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
    body = tuple(remat.with_residuals(one) for one in op.body)
    op = replace(
        op,
        body=body,
        unrolled=op.over_layers and remat.unrolled,
        checkpointed=remat.policy != "none",
    )
    stacked = {inside.name for inside, outside in op.stacks if outside.name in given}
    carried = {
        inside.name: _cotangent(inside, "~carried" if inside.name in stacked else "")
        for _, _, inside, _ in op.carries
        if not inside.frozen
    }
    added = {i.name: given[o.name] for i, o in op.sums if o.name in given}
    written = {
        inside.name: replace(
            _cotangent(inside, "~stacked" if inside.name in carried else ""),
            role=given[outside.name].role,
        )
        for inside, outside in op.stacks
        if inside.name in stacked
    }
    seed: dict[str, list[Tensor]] = {}
    for name, tensor in (*carried.items(), *written.items(), *added.items()):
        seed.setdefault(name, []).append(tensor)
    _, inner = _differentiate(op.body, seed, remat)
    carries = _carried_back(op, given, carried, inner, sweep)
    stacks = _gradients(op, inner, sweep, ((part, whole) for whole, part in op.slices))
    after = _weights_after(op, inner, stacks, sweep) if op.weights_after else {}
    shared = ((t, t if op.apart else _summed(t)) for t in op.shared if t not in after)
    sums = _gradients(op, inner, sweep, shared)
    keeps = _keeps_sums if op.steps else remat.keeps
    again, kept = recompute(
        op.body,
        inner.ops,
        keeps,
        in_readers=remat.left_to_compiler,
        keeps_norms=remat.keeps_norms,
    )
    body = _block_by_block(again, inner.ops)
    parts = (
        *((given[o.name], written[i.name]) for i, o in op.stacks if i.name in written),
        *op.slices,
    )
    name, phase = f"{op.name}/d", Phase.BACKWARD
    back = Scan(
        name, op.trips, body, carries, stacks=stacks, sums=sums, steps=op.steps,
        apart=op.apart, unrolled=op.unrolled, phase=phase,
    )  # fmt: skip
    back = _with_reads(back, kept, parts, (*op.shared, *added.values()))
    sweep.ops.append(back)
    sweep.ops.extend(after.values())
    names = {tensor.name for tensor in op.shared}
    own = {name: t for name, t in inner.parameter_gradients.items() if name not in names}
    sweep.parameter_gradients |= own
    return replace(op, saves=back.loads)


def _keeps_sums(op: Op, tensor: Tensor) -> bool:
    """Return True for what a recurrence saves: sums of matmuls, as no step is computed again."""
    return isinstance(op, Einsum) or (isinstance(op, Pointwise) and op.linear)


def _weights_after(
    op: Scan,
    inner: _GradientSweep,
    stacks: tuple[tuple[Tensor, Tensor], ...],
    sweep: _GradientSweep,
) -> dict[Tensor, Op]:
    """Take gradients of shared weights out of the steps; return one matmul over all of them each.

    A step multiplies a carried state with the gradient of what it sliced. All states but the first
    are in the stacks of the scan, and the gradients in those of the backward scan.
    """
    wholes = {inside.name: outside for inside, outside in stacks}
    written = {inside.name: outside for inside, outside in op.stacks}
    for _, entered, left, _ in op.carries:
        if left.name in written:
            wholes[entered.name] = written[left.name]
    found: dict[Tensor, Op] = {}
    for tensor in op.shared:
        made = {t.name for t in inner.contributions.get(tensor.name, ())}
        makers = [one for one in inner.ops if {t.name for t in one.outputs} & made]
        if tensor.role is not TensorRole.PARAM or len(makers) != 1:
            continue
        (one,) = makers
        if isinstance(one, Einsum) and {t.name for t in one.inputs} <= wholes.keys():
            lhs, rhs = (_along(op.steps, t, wholes[t.name]) for t in one.inputs)
            inner.ops.remove(one)
            made_by = sweep.contribution(tensor, op.name)
            found[tensor] = replace(one, lhs=lhs, rhs=rhs, output=made_by)
    return found


def _along(steps: str, inside: Tensor, outside: Tensor) -> Tensor:
    """Return the tensor of all steps with the names that a step has for its dimensions."""
    names = iter(inside.dims)
    return outside.view(tuple(d if d == steps else next(names) for d in outside.dims))


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
        if inner_out.frozen:
            continue
        total = inner.total(inner_in)
        if total is None:
            raise ValueError(f"{op.name}: no gradient reaches {inner_in.name}")
        before = given.get(outer_out.name) or _zeros(_cotangent(outer_out), sweep)
        after = sweep.contribution(outer_in, op.name)
        pairs.append((before, carried[inner_out.name], total, after))
    return tuple(pairs)


def _gradients(
    op: Scan, inner: _GradientSweep, sweep: _GradientSweep, tensors: Iterable[tuple[Tensor, Tensor]]
) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return, for each (inside, outside), the gradient of an iteration and that of the scan."""
    pairs = []
    for inside, outside in tensors:
        shared = op.name if inside.name == outside.name else ""
        total = inner.total(inside, shared) if outside.role is not TensorRole.INPUT else None
        if total is not None:
            pairs.append((total, sweep.contribution(outside, op.name)))
    return tuple(pairs)


def _zeros(made: Tensor, sweep: _GradientSweep) -> Tensor:
    """Return a gradient that is zero, as nothing reads what a scan leaves."""
    name, phase = f"{made.name}/zeros", Phase.BACKWARD
    sweep.ops.append(Pointwise(name, (), (made,), 0.0, linear=True, keeps="", phase=phase))
    return made


def _summed(tensor: Tensor) -> Tensor:
    """Return a shared tensor as its gradients are added up over iterations.

    JAX adds those of an activation up in its own dtype (the encoder's result in the loop over the
    decoder's layers, on v5e 2x4 and v4 2x2x2, libtpu 0.0.42.1).
    """
    return replace(tensor, dtype=STORED) if tensor.role is TensorRole.PARAM else tensor


def _cotangent(tensor: Tensor, mark: str = "") -> Tensor:
    """Return the gradient of a tensor; the mark tells two of one tensor apart."""
    return tensor.gradient(f"d({tensor.name}){mark}")


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
    for op in backward:
        for block in [block for block in waiting if op.name.startswith(f"{block}/")]:
            result += _recomputed(block, waiting, maker)
        for tensor in op.inputs:
            result += _recomputed(maker.get(tensor.name, ""), waiting, maker)
        result.append(op)
    return tuple(result)


def _recomputed(block: str, waiting: dict[str, list[Op]], maker: Mapping[str, str]) -> Iterator[Op]:
    """Yield the operations of a block that waits, each after the blocks that make its inputs."""
    for op in waiting.pop(block, ()):
        for tensor in op.inputs:
            yield from _recomputed(maker.get(tensor.name, ""), waiting, maker)
        yield op


def _block(name: str) -> str:
    return name.rpartition("/")[0]
