"""The time of collectives that no rule asks for: of which tensor, and between which layouts."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tpusim.base.errors import TpusimError
from tpusim.partition import CollectiveNode, ComputeNode, Layout, PartitionedGraph, body_nodes
from tpusim.program import Collective
from tpusim.results.extra_flops import PartitionedStep
from tpusim.results.lines import operation_records
from tpusim.results.result import Result
from tpusim.results.sharding_cures import MUCH_LESS, Tables
from tpusim.results.totals import over_axes


class UnaskedTime(NamedTuple):
    """The exposed time of one implicit resharding.

    share: of the step, the mean of its devices.
    what: the collective and its axes, as `Result.implicit_reshardings` has them.
    tensor: that it moves.
    """

    share: float
    what: str
    tensor: str


def unasked_time(result: Result) -> Iterator[UnaskedTime]:
    """Yield the exposed time of each tensor's implicit resharding, the longest first."""
    spent: Counter[tuple[str, str]] = Counter()
    for _, op, picoseconds in operation_records(result):
        if isinstance(op, Collective) and not op.asked:
            spent[over_axes(op), op.scope] += picoseconds
    whole = result.timeline.core_count * result.timeline.total_ps
    for (what, tensor), picoseconds in spent.most_common():
        yield UnaskedTime(picoseconds / whole, what, tensor)


class Mismatch(NamedTuple):
    """The two layouts of a tensor between which a collective leads.

    reader: the operation that reads the second; empty where none does by itself.
    """

    dims: tuple[str, ...]
    before: Layout
    after: Layout
    reader: str


def mismatch(step: PartitionedStep, found: UnaskedTime) -> Mismatch | None:
    """Return the layouts of a resharding of a step; None where no collective of it is that."""
    graph = step.partitioned
    for node in _unasked(graph):
        if (over_axes(node), node.tensor) == (found.what, found.tensor):
            before, after = (graph.buffers[key].local for key in (node.reads[0], node.writes[0]))
            return Mismatch(before.dims, before.layout, after.layout, _reader(graph, node.writes))
    return None


def annotation(step: PartitionedStep, found: UnaskedTime, between: Mismatch) -> Tables | None:
    """Return the annotation of a tensor with which no such collective is left.

    A gradient has the layout of its primal, which is annotated in its place. None if none helps.
    """
    name = found.tensor
    while name.startswith("d(") and name.endswith(")"):
        name = name[2:-1]
    for layout in (between.before, between.after):
        written = [axes[0] if len(axes) == 1 else list(axes) for axes in layout]
        keys = {"annotate": {**step.plan.annotate, name: written}}
        try:
            other = PartitionedStep(step.model, step.plan.replace(**keys))
            if other.moved(unasked=True) <= MUCH_LESS * step.moved(unasked=True):
                return keys
        except TpusimError:
            continue
    return None


def _reader(graph: PartitionedGraph, keys: Sequence[str]) -> str:
    readers = (
        node.op.name
        for node, _ in body_nodes(graph.nodes)
        if isinstance(node, ComputeNode) and not set(keys).isdisjoint(node.reads)
    )
    return next(readers, "")


def _unasked(graph: PartitionedGraph) -> Iterator[CollectiveNode]:
    for node, _ in body_nodes(graph.nodes):
        if isinstance(node, CollectiveNode) and not node.asked:
            yield node
