"""The front door: a model, a plan and a slice become a result."""

from functools import lru_cache

from tpusim.costs import cost_program, delay_seconds, route, route_seconds
from tpusim.engine import run
from tpusim.graph import Graph, Remat, training_step
from tpusim.hardware import Placement, Slice, placement_from, placements
from tpusim.models import Transformer
from tpusim.partition import Plan, Sizes, Template, lower, structure
from tpusim.partition.template import Comm, body_nodes
from tpusim.program import CollectiveKind
from tpusim.result import Result, Verdicts, make_result


def simulate(
    model: Transformer, plan: Plan, pod: Slice, *, fold: bool = True,
    placement: Placement | None = None,
) -> Result:  # fmt: skip
    """Simulate one training step of `model` under `plan` on `pod`.

    placement: one of `hardware.placements`, in place of the plan's own.
    fold: book repeated trips of loops instead of simulating each; the result is the same to the
    picosecond. A plan that does not fit in HBM is a result whose `fits` is false; one that the
    model or the slice does not admit raises PlanError with one sentence.
    """
    graph = step_graph(model, plan.global_batch, plan.seq_len, plan.remat_policy)
    template = structure(graph, plan)
    given = placement or plan.placement
    placement = placement or place(template, graph, plan, pod)
    program = lower(template, graph, plan, pod, placement)
    timeline = run([cost_program(program, pod, placement)], fold=fold)
    verdicts = Verdicts(template.dropped, given is not None)
    return make_result(model, plan, pod, placement, graph, program, timeline, verdicts)


@lru_cache(maxsize=32)
def step_graph(model: Transformer, batch: int, seq_len: int, remat: Remat) -> Graph:
    """The training step of a model, kept for the next plan of the same batch."""
    return training_step(model.graph(batch=batch, seq_len=seq_len), remat)


def place(template: Template, graph: Graph, plan: Plan, pod: Slice) -> Placement:
    """The placement that the plan gives, or else the one whose collectives take the least time.

    Each candidate is judged by its collectives one after the other, by the algorithms that the
    compiler picks; of equal ones the first is taken.
    """
    if plan.placement is not None:
        return placement_from(pod, plan.mesh, plan.placement)
    candidates = placements(pod, plan.mesh)
    if len(candidates) == 1:
        return candidates[0]
    traffic = _traffic(template, Sizes(graph.sizes, plan.active_axes, plan.dtype))
    return min(candidates, key=lambda candidate: _serial_seconds(traffic, candidate, pod))


Traffic = dict[tuple[CollectiveKind, tuple[str, ...]], tuple[int, float]]
"""For each kind of collective and its axes: how many there are, and their bytes in all."""


def _traffic(template: Template, sizes: Sizes) -> Traffic:
    traffic: Traffic = {}
    for node, trips in body_nodes(template.nodes):
        if isinstance(node, Comm):
            nbytes = float(sizes.nbytes(node.payload, node.dtype))
            count, total = traffic.get((node.kind, node.axes), (0, 0.0))
            traffic[node.kind, node.axes] = (count + trips, total + trips * nbytes)
    return traffic


def _serial_seconds(traffic: Traffic, placement: Placement, pod: Slice) -> float:
    """Seconds of all collectives, one after the other."""
    total = 0.0
    for (kind, axes), (count, nbytes) in traffic.items():
        spans = [span for axis in axes for span in placement.spans(axis)]
        path = route(kind, spans, pod.topology)
        once = delay_seconds(path, pod.chip)
        total += (count - 1) * once + float(route_seconds(path, nbytes, pod.chip))
    return total
