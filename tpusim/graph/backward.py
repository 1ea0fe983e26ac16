"""Reverse-mode differentiation of a graph: the training step from the forward pass.

The sweep goes through the operations backwards, asks each for its transposes, and adds up the
shares that a tensor's gradient has when it was read more than once. A scan becomes a second scan
over its transposed body, with what is recomputed in front; what its trips shared gets the sum of
their gradients, in the dtype in which weights are stored.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from tpusim.graph.graph import Graph
from tpusim.graph.ops import Op, Scan
from tpusim.graph.pointwise import Pointwise
from tpusim.graph.remat import Remat, check_saved_names, recompute
from tpusim.graph.tensor import STORED, Role, Tensor
from tpusim.phase import Phase


def training_step(graph: Graph, remat: Remat) -> Graph:
    """The forward and backward pass of `graph`, with the gradient of every parameter."""
    bodies = [op.body for op in graph.ops if isinstance(op, Scan) and not op.recomputed]
    check_saved_names(
        remat, (t for body in bodies for op in body for t in (*op.inputs, *op.outputs))
    )
    loss = graph.loss
    seed = {
        loss.name: replace(loss, name=f"d({loss.name})", role=Role.INPUT, primal=loss.name),
    }
    forward, tape = _differentiate(graph.ops, seed, remat)
    return replace(
        graph, ops=forward + tuple(tape.ops), gradients=tuple(tape.parameter_gradients.items())
    )


@dataclass(slots=True)
class _Tape:
    """What the sweep has made so far."""

    uses: Counter[str]
    ops: list[Op] = field(default_factory=list)
    shares: dict[str, list[Tensor]] = field(default_factory=dict)
    parameter_gradients: dict[str, Tensor] = field(default_factory=dict)

    def share(self, of: Tensor, by: str) -> Tensor:
        """A new tensor for the part of `of`'s gradient that operation `by` makes."""
        name = f"d({of.name})" if self.uses[of.name] == 1 else f"d({of.name})~{_short(by)}"
        made = of.gradient(name)
        self.shares.setdefault(of.name, []).append(made)
        return made

    def total(self, tensor: Tensor) -> Tensor | None:
        """The whole gradient of `tensor`, adding up its shares; None when it has none."""
        shares = [share.view(tensor.dims) for share in self.shares.get(tensor.name, ())]
        if len(shares) < 2:
            return shares[0] if shares else None
        made = _cotangent(tensor)
        if any(share.dtype == STORED for share in shares):
            made = replace(made, dtype=STORED)
        self.ops.append(
            Pointwise(
                f"{tensor.name}/dsum",
                tuple(shares),
                (made,),
                len(shares) - 1,
                linear=True,
                keeps="",
                phase=Phase.BACKWARD,
            )
        )
        self.shares[tensor.name] = [made]
        return made


def _differentiate(
    ops: tuple[Op, ...], seed: dict[str, Tensor], remat: Remat
) -> tuple[tuple[Op, ...], _Tape]:
    """The forward operations (scans now saving what is needed) and the tape of the backward."""
    reads = (t.name for op in ops for t in {t.name: t for t in op.inputs}.values())
    tape = _Tape(Counter(reads), shares={name: [tensor] for name, tensor in seed.items()})
    forward = list(ops)
    for place, op in reversed(list(enumerate(ops))):
        given = {
            tensor.name: total for tensor in op.outputs if (total := tape.total(tensor)) is not None
        }
        if not given:
            continue
        if isinstance(op, Scan):
            forward[place] = _transpose_scan(op, given, tape, remat)
        elif isinstance(op, Pointwise) and op.linear:
            _pass_through(op, given, tape)
        else:
            tape.ops.extend(
                op.transpose(given, lambda tensor, by=op.name: tape.share(tensor, by))  # type: ignore[misc]
            )
    for op in ops:
        for tensor in op.inputs:
            if tensor.role is Role.PARAM and tensor.name not in tape.parameter_gradients:
                total = tape.total(tensor)
                if total is not None:
                    tape.parameter_gradients[tensor.name] = total
    return tuple(forward), tape


def _pass_through(op: Pointwise, given: dict[str, Tensor], tape: _Tape) -> None:
    """A sum hands its gradient to each of its inputs as it is."""
    gradient = given[op.outputs[0].name]
    for tensor in op.inputs:
        if tensor.role is not Role.INPUT:
            tape.shares.setdefault(tensor.name, []).append(gradient)


def _transpose_scan(op: Scan, given: dict[str, Tensor], tape: _Tape, remat: Remat) -> Scan:
    """Put the backward scan on the tape; return the forward one with what it has to save."""
    remat = Remat() if op.recomputed else remat
    op = replace(op, body=tuple(remat.recorded(one) for one in op.body))
    carried = {inside.name: _cotangent(inside) for _, _, inside, _ in op.carries}
    written = {
        inside.name: replace(_cotangent(inside), role=given[outside.name].role)
        for inside, outside in op.stacks
    }
    _, inner = _differentiate(op.body, carried | written, remat)
    carries = _carried_back(op, given, carried, inner, tape)
    stacks = _gradients(op, inner, tape, ((part, whole) for whole, part in op.slices))
    sums = _gradients(op, inner, tape, ((t, replace(t, dtype=STORED)) for t in op.shared))
    again, kept = recompute(op.body, inner.ops, remat.keeps)
    body = _block_by_block(again, inner.ops)
    parts = (*((given[o.name], written[i.name]) for i, o in op.stacks), *op.slices)
    back = Scan(f"{op.name}/d", op.trips, body, carries, stacks=stacks, sums=sums,
                phase=Phase.BACKWARD)  # fmt: skip
    back = _with_reads(back, kept, parts, op.shared)
    tape.ops.append(back)
    shared = {tensor.name for tensor in op.shared}
    own = {name: t for name, t in inner.parameter_gradients.items() if name not in shared}
    tape.parameter_gradients |= own
    return replace(op, saves=back.loads)


def _with_reads(
    back: Scan, kept: Iterable[Tensor], parts: Iterable[tuple[Tensor, Tensor]],
    shared: Iterable[Tensor],
) -> Scan:  # fmt: skip
    """The backward scan with what its body reads: parts of tensors, saved and shared ones."""
    read = {tensor.name for one in back.body for tensor in one.inputs}
    slices = tuple(pair for pair in parts if pair[1].name in read)
    sliced = {part.name for _, part in slices}
    return replace(
        back, slices=slices, loads=tuple(t for t in kept if t.name not in sliced),
        shared=tuple(t for t in shared if t.name in read),
    )  # fmt: skip


def _carried_back(
    op: Scan, given: dict[str, Tensor], carried: dict[str, Tensor], inner: _Tape, tape: _Tape
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], ...]:
    """The gradients that the backward scan carries, for each tensor that the forward one does."""
    pairs = []
    for outer_in, inner_in, inner_out, outer_out in op.carries:
        total = inner.total(inner_in)
        if total is None or outer_out.name not in given:
            raise ValueError(f"{op.name}: no gradient reaches {inner_in.name}")
        before, after = given[outer_out.name], tape.share(outer_in, op.name)
        pairs.append((before, carried[inner_out.name], total, after))
    return tuple(pairs)


def _gradients(
    op: Scan, inner: _Tape, tape: _Tape, tensors: Iterable[tuple[Tensor, Tensor]]
) -> tuple[tuple[Tensor, Tensor], ...]:
    """Of each (inside, outside): the gradient of a trip, and what the scan makes of those."""
    pairs = []
    for inside, outside in tensors:
        total = inner.total(inside) if outside.role is not Role.INPUT else None
        if total is not None:
            pairs.append((total, tape.share(outside, op.name)))
    return tuple(pairs)


def _cotangent(tensor: Tensor) -> Tensor:
    return tensor.gradient(f"d({tensor.name})")


def _block_by_block(again: Sequence[Op], backward: Sequence[Op]) -> tuple[Op, ...]:
    """The backward pass, with what each block computes again right before it.

    A block is what names have before their last part: one layer of a pattern. All of its inputs
    are saved, so nothing of it has to be there before its own backward pass.
    """
    waiting: dict[str, list[Op]] = {}
    for op in again:
        waiting.setdefault(_block(op.name), []).append(op)
    maker = {tensor.name: _block(op.name) for op in again for tensor in op.outputs}
    result: list[Op] = []

    def bring(block: str) -> None:
        for op in waiting.pop(block, ()):
            for tensor in op.inputs:
                bring(maker.get(tensor.name, ""))
            result.append(op)

    for op in backward:
        for block in [block for block in waiting if op.name.startswith(f"{block}/")]:
            bring(block)
        for tensor in op.inputs:
            bring(maker.get(tensor.name, ""))
        result.append(op)
    return tuple(result)


def _block(name: str) -> str:
    return name.rpartition("/")[0]


def _short(name: str) -> str:
    """The last part of a name: `layer/wq` is `wq`."""
    return name.rsplit("/", 1)[-1]
