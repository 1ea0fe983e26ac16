"""Dtypes on the way: weights while they are gathered, gradients while they are reduced.

A weight is gathered in one of three dtypes. In the compute dtype: the local shards are cast once a
step, and the copies need nothing more. As it is stored: no shard is cast, and a pass casts each
gathered copy. In the dtype of quantised matmuls: a pass over the shard quantises it, first thing in
the body, and no pass is needed after; AQT calls the use of one quantised copy in the forward and
the backward matmul `use_fwd_quant`. Scales travel too and are not counted: one for each channel.

A weight's gradient leaves its matmul in the dtype in which it is reduced, and is stacked in another
by what writes the stack, without a pass of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tpusim.graph import COMPUTE, Op, Pointwise, Role, Tensor
from tpusim.partition.passes import Entry, Planned, Ring
from tpusim.partition.plan import Plan
from tpusim.partition.quantise import CATEGORY, narrowed, quantisation
from tpusim.partition.template import Buffer, Calc, Comm, Node, Purpose, Template, body_nodes
from tpusim.phase import Phase

GRADIENTS = "unreduced gradients"


def reduced_in(plan: Plan, buffers: Mapping[str, Buffer]) -> dict[str, Buffer]:
    """The buffers, those of unreduced gradients in the dtype of their reduction."""
    dtype = _other(plan.dtype_of("reduce_dtype"), plan)
    return {
        key: replace(buffer, dtype=dtype) if _is_term(buffer) else buffer
        for key, buffer in buffers.items()
    }


def _is_term(buffer: Buffer) -> bool:
    """Whether it is an unreduced gradient; sums over trips are in a dtype of their own."""
    return buffer.category == GRADIENTS and buffer.dtype == COMPUTE


def travelling(
    nodes: Sequence[Node], plan: Plan, weights: frozenset[str], buffers: dict[str, Buffer]
) -> list[Node]:
    """The nodes of a body with collectives of weights and gradients in their dtypes.

    Passes that quantise shards come first; `buffers` takes their results and the dtypes of copies.
    """
    gathers = gather_dtypes(nodes, plan)
    sums = _other(plan.dtype_of("reduce_dtype"), plan)
    passes: dict[str, Calc] = {}
    result: list[Node] = []
    for node in nodes:
        if isinstance(node, Calc) and sums != COMPUTE:
            op = _summing(node.op, weights, sums) if isinstance(node.op, Pointwise) else node.op
            after = tuple(_summing(group, weights, sums) for group in node.epilogue)
            node = replace(node, op=op, epilogue=after)
        elif isinstance(node, Comm) and node.purpose is Purpose.GRADIENT:
            node = replace(node, dtype=sums) if node.dtype == COMPUTE else node
        elif isinstance(node, Comm) and node.name in gathers:
            node = _gathered(node, gathers[node.name], plan, passes, buffers)
        result.append(node)
    return [*passes.values(), *result]


def gather_dtypes(nodes: Sequence[Node], plan: Plan) -> dict[str, str]:
    """The dtype of each gather of a weight, by its name, where it is not the compute dtype.

    What is quantised before is gathered for quantised matmuls alone, whatever way it takes.
    """
    dtype = plan.dtype_of("gather_dtype")
    if dtype == plan.dtype:
        return {}
    gathers = [n for n in nodes if isinstance(n, Comm) and n.purpose is Purpose.WEIGHT]
    calcs = [n for n in nodes if isinstance(n, Calc)]
    fit: dict[str, bool] = {}
    for comm in reversed(gathers):
        (key,) = comm.writes
        fits = [fit[other.name] for other in gathers if key in other.reads]
        if plan.gathers_quantised:
            fits += [_weight(calc.op, comm.tensor).dtype == dtype for calc in calcs
                     if key in calc.reads]  # fmt: skip
        fit[comm.name] = all(fits)
    return dict.fromkeys((name for name, fits in fit.items() if fits), dtype)


def cast_before(template: Template, plan: Plan) -> frozenset[str]:
    """The weights of which the shards are cast to the compute dtype, once a step."""
    names = frozenset(weight.name for weight in template.weights)
    if plan.dtype_of("gather_dtype") == plan.dtype:
        return names
    nodes = narrowed([node for node, _ in body_nodes(template.nodes)], plan, names)
    others = gather_dtypes(nodes, plan)
    made = {key for node in nodes for key in node.writes}
    return frozenset(
        name
        for node in nodes
        if not (isinstance(node, Comm) and node.name in others)
        for name in _stored(node, made)
        if name in names
    )


def _stored(node: Node, made: set[str]) -> Iterator[str]:
    """The tensors of which a node reads what nothing in the step has made."""
    if isinstance(node, Comm) and made.isdisjoint(node.reads):
        yield node.tensor
    if isinstance(node, Calc):
        own = [key for key in node.reads if key not in made]
        yield from (t.name for t in node.op.inputs if t.role is Role.PARAM
                    and any(key.endswith(t.name) for key in own))  # fmt: skip


def _gathered(
    comm: Comm, dtype: str, plan: Plan, passes: dict[str, Calc], buffers: dict[str, Buffer]
) -> Comm:
    """The gather in its dtype, of a shard that a pass has quantised where it has to be."""
    (source,), (copy,) = comm.reads, comm.writes
    buffers[copy] = replace(buffers[copy], dtype=dtype)
    if plan.gathers_quantised and buffers[source].dtype != dtype:
        source = _quantised(source, comm, dtype, plan, passes, buffers)
    return replace(comm, dtype=dtype, reads=(source,))


def _quantised(
    source: str, comm: Comm, dtype: str, plan: Plan, passes: dict[str, Calc],
    buffers: dict[str, Buffer],
) -> str:  # fmt: skip
    """The quantised shard of a stored weight; its pass is in `passes`."""
    key = f"{source} {dtype}"
    if source not in passes:
        local = buffers[source].local
        tensor = Tensor(comm.tensor, local.dims, Role.PARAM, dtype)
        group = quantisation(tensor, comm.phase, source=plan.param_dtype)
        passes[source] = _calc(f"quantise/{key}", group, source, key, buffers[source])
        buffers[key] = Buffer(local, dtype, CATEGORY)
    return key


def with_casts(entries: Sequence[Entry], buffers: dict[str, Buffer]) -> list[Entry]:
    """The entries with a pass that casts each gathered copy before its first reader.

    It is for copies that came in another dtype than the one that they are used in; what a ring
    gathers is cast in the ring. The cast copies are added to `buffers`.
    """
    weights = {
        key: comm.tensor
        for entry in entries
        if isinstance(entry, Planned)
        for comm in entry.comms
        if comm.purpose is Purpose.WEIGHT and buffers[comm.writes[0]].dtype != COMPUTE
        for key in comm.writes
    }
    cast: dict[str, str] = {}
    result: list[Entry] = []
    for entry in entries:
        calc = entry.calc if isinstance(entry, Ring) else entry
        if isinstance(calc, Calc):
            for key in (k for k in calc.reads if _uses(calc.op, weights.get(k, ""))):
                if key not in cast:
                    cast[key] = f"{key} cast"
                    result.append(_cast(calc, key, cast[key], weights[key], buffers))
            calc = replace(calc, reads=tuple(
                cast[k] if _uses(calc.op, weights.get(k, "")) else k for k in calc.reads
            ))  # fmt: skip
            entry = replace(entry, calc=calc) if isinstance(entry, Ring) else calc
        result.append(entry)
    return result


def _uses(op: Op, weight: str) -> bool:
    """Whether an operation reads a weight in the compute dtype."""
    return any(t.name == weight and t.dtype == COMPUTE for t in op.inputs)


def _cast(calc: Calc, key: str, copy: str, weight: str, buffers: dict[str, Buffer]) -> Calc:
    gathered = buffers[key]
    buffers[copy] = replace(gathered, dtype=COMPUTE, category="cast weights")
    group = conversion(_weight(calc.op, weight), gathered.dtype, calc.phase)
    return _calc(f"cast/{key}", group, key, copy, gathered)


def conversion(tensor: Tensor, source: str, phase: Phase) -> Pointwise:
    """The pass that casts `tensor` from the dtype `source`: its conversion is all its work."""
    cast = replace(tensor, name=f"{tensor.name} cast")
    given = (replace(tensor, dtype=source),)
    return Pointwise(f"{tensor.name}/cast", given, (cast,), 0.0, keeps="", phase=phase)


def _calc(name: str, group: Pointwise, source: str, made: str, buffer: Buffer) -> Calc:
    split = tuple((dim, axes) for dim, axes in buffer.local.split().items() if axes)
    return Calc(name=name, op=group, split=split, reads=(source,), writes=(made,))


def _weight(op: Op, name: str) -> Tensor:
    return next(tensor for tensor in op.inputs if tensor.name == name)


def _summing(op: Pointwise, weights: frozenset[str], dtype: str) -> Pointwise:
    """The group with its weight gradients in `dtype`."""
    inputs, outputs = (
        tuple(replace(t, dtype=dtype) if t.primal in weights else t for t in tensors)
        for tensors in (op.inputs, op.outputs)
    )
    return replace(op, inputs=inputs, outputs=outputs)


def _other(dtype: str, plan: Plan) -> str:
    """The dtype as tensors have it, which call the plan's own `compute`."""
    return COMPUTE if dtype == plan.dtype else dtype
