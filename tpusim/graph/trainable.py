"""The weights that a step trains: some of the model's own, and adapters beside its matrices.

A frozen weight is marked in the forward pass, and so is each tensor that no trained weight has
made. The rest follows, as it does for uses that pass no gradient on (`GraphWriter.stop`): nothing
is saved, reduced, accumulated or updated for a frozen weight, and the backward pass ends at the
lowest trained one: an embedding below the first adapter has none.

An adapter (LoRA, arXiv:2106.09685) multiplies by two thin matrices beside one that is frozen:
y = x W + (x A) B. Its scale is a part of B, as that of the paper is a part of the learning rate.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from tpusim.base.errors import PlanError, nearest
from tpusim.base.value_checks import check_names
from tpusim.graph.contractions import Einsum
from tpusim.graph.function import ADD
from tpusim.graph.graph import Graph
from tpusim.graph.matrices import layer_matrices
from tpusim.graph.ops import Op, Scan
from tpusim.graph.pointwise import Pointwise
from tpusim.graph.tensor import ADAPTER_RANK, Tensor, TensorRole
from tpusim.graph.tiled_loss import with_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """The adapters beside the matrices of layers.

    rank: rank of the adapters; 0 for none. It is the number of columns of the first matrix and of
        rows of the second.
    weights: name patterns of the weights with an adapter, such as `wq` or `layer/w*`; all matrices
        of layers if none is given.
    """

    rank: int = 0
    weights: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 0:
            raise PlanError(
                f"plan.adapters.rank is {self.rank!r}; write a whole number, such as 16, or 0 for "
                "no adapters"
            )
        check_names("plan.adapters.weights", self.weights, '["wq", "wv"]')
        object.__setattr__(self, "weights", tuple(self.weights))

    def check_together(self) -> None:
        """Raise PlanError for weights without a rank."""
        if self.weights and not self.rank:
            raise PlanError(
                f"plan.adapters.weights is {list(self.weights)}, but plan.adapters.rank is 0: no "
                "weight has an adapter; write a rank, such as 16"
            )


def with_trainable(graph: Graph, adapters: Adapters, trainable: Sequence[str]) -> Graph:
    """Return a forward pass with its adapters, whose frozen tensors are marked.

    trainable: patterns of the names of weights that are trained besides the adapters; without any,
        and without adapters, all are.

    Raise PlanError for a pattern that no weight has.
    """
    if not (adapters.rank or trainable):
        return graph
    own = {parameter.tensor.name for parameter in graph.parameters}
    trained = _matching(trainable, own, "plan.trainable", graph.name)
    if adapters.rank:
        graph = _with_adapters(graph, adapters)
    every = {parameter.tensor.name for parameter in graph.parameters}
    trained |= every - own
    return graph if trained == every else _with_frozen(graph, trained)


def _matching(patterns: Iterable[str], names: Collection[str], key: str, model: str) -> set[str]:
    """Return the names that patterns match, whole or after their last slash."""
    found: set[str] = set()
    for pattern in patterns:
        own = {n for n in names if any(fnmatchcase(t, pattern) for t in (n, _short(n)))}
        if not own:
            known = sorted(set(map(_short, names)))
            some = f"some are {', '.join(known[:8])}" if len(known) > 8 else ""
            raise PlanError(
                f"{key} lists {pattern!r}, which matches no such weight of {model}: "
                f"{nearest(_short(pattern), known, some)}"
            )
        found |= own
    return found


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def _with_adapters(graph: Graph, adapters: Adapters) -> Graph:
    matrices = layer_matrices(graph)
    if not matrices:
        raise PlanError(
            f"plan.adapter_rank is {adapters.rank}, but {graph.name} has no layers with matrices "
            "that could have an adapter; write 0, and name the weights to train in plan.trainable"
        )
    key = "plan.adapter_weights"
    chosen = _matching(adapters.weights or ("*",), matrices.keys(), key, graph.name)
    dims = (*graph.dims, (ADAPTER_RANK, adapters.rank))
    return replace(graph, dims=dims, ops=tuple(_adapted(graph.ops, chosen)))


def _adapted(ops: Iterable[Op], chosen: Collection[str]) -> Iterator[Op]:
    for op in ops:
        if isinstance(op, Scan):
            yield replace(op, body=tuple(_adapted(op.body, chosen)))
            continue
        weight = next((t for t in op.inputs if t.name in chosen), None)
        if isinstance(op, Einsum) and weight is not None:
            yield from _beside(op, weight)
        else:
            yield op


def _beside(op: Einsum, weight: Tensor) -> Iterator[Op]:
    """Yield a matmul with a weight, those of its adapter, and the sum of both results.

    Dimensions of the weight that operand and result share, such as experts, are those of both of
    the adapter's matrices.
    """
    x, made = (op.rhs if op.lhs is weight else op.lhs), op.output
    rows = [dim for dim in weight.dims if dim in x.dims]
    shared = [dim for dim in rows if dim in made.dims]
    columns = [dim for dim in weight.dims if dim not in rows]
    first, second = (
        replace(weight, name=f"{weight.name}_adapter_{end}", dims=tuple(dims))
        for end, dims in (
            ("a", [*rows, ADAPTER_RANK]),
            ("b", [*shared, ADAPTER_RANK, *columns]),
        )
    )
    base, low, delta = (
        replace(made, name=f"{made.name}_{part}") for part in ("base", "low", "delta")
    )
    kept = [dim for dim in x.dims if dim not in rows or dim in shared]
    low = replace(low, dims=(*kept, ADAPTER_RANK))
    name = f"{op.name}_adapter"
    yield replace(op, output=base)
    yield replace(op, name=f"{name}_a", lhs=x, rhs=first, output=low)
    yield replace(op, name=f"{name}_b", lhs=low, rhs=second, output=delta)
    total = Pointwise(f"{name}_sum", (base, delta), (made,), 1.0, linear=True, keeps="")
    yield replace(total, function=ADD, inlined=True)


def _with_frozen(graph: Graph, trained: Collection[str]) -> Graph:
    """Return the forward pass with all tensors marked that no trained weight has made."""
    live = set(trained)
    _spread(graph.ops, live)

    def marked(tensor: Tensor) -> Tensor:
        made = tensor.role in (TensorRole.PARAM, TensorRole.ACTIVATION)
        return replace(tensor, frozen=True) if made and tensor.name not in live else tensor

    return replace(graph, ops=_marked(graph.ops, marked))


def _marked(ops: Iterable[Op], marked: Callable[[Tensor], Tensor]) -> tuple[Op, ...]:
    found = (with_tensors(op, marked) for op in ops)
    return tuple(
        replace(op, body=_marked(op.body, marked)) if isinstance(op, Scan) else op for op in found
    )


def _spread(ops: Iterable[Op], live: set[str]) -> None:
    """Add the tensors that live ones make; an iteration of a scan takes what the one before left.

    live: names of tensors whose gradients are wanted.
    """

    def passed(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        live.update(to.name for given, to in pairs if given.name in live and not given.stopped)

    for op in ops:
        if not isinstance(op, Scan):
            passed((given, made) for given in op.inputs for made in op.outputs)
            continue
        passed((*((before, first) for before, first, _, _ in op.carries), *op.slices))
        known = -1
        while known != len(live):
            known = len(live)
            _spread(op.body, live)
            passed((last, first) for _, first, last, _ in op.carries)
        passed((*((last, after) for _, _, last, after in op.carries), *op.stacks, *op.sums))
