"""The front door: a model, a plan and a slice become a result."""

from functools import lru_cache

from tpusim.costs import collective_seconds, cost_program
from tpusim.engine import run
from tpusim.graph import Graph, Remat, training_step
from tpusim.hardware import Placement, Slice, placement_from, placements
from tpusim.models import Transformer
from tpusim.partition import Plan, Sizes, Template, lower, structure
from tpusim.partition.template import Comm, body_nodes
from tpusim.result import Result, Verdicts, make_result


def simulate(model: Transformer, plan: Plan, pod: Slice, *, fold: bool = True) -> Result:
    """Simulate one training step of `model` under `plan` on `pod`.

    fold: book repeated trips of loops instead of simulating each; the result is the same to the
    picosecond. A plan that does not fit in HBM is a result whose `fits` is false; one that the
    model or the slice does not admit raises PlanError with one sentence.
    """
    graph = step_graph(model, plan.global_batch, plan.seq_len, plan.remat_policy)
    template = structure(graph, plan)
    placement = place(template, graph, plan, pod)
    program = lower(template, graph, plan, pod, placement)
    timeline = run([cost_program(program, pod, placement)], fold=fold)
    verdicts = Verdicts(template.dropped, plan.placement is not None)
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
    sizes = Sizes(graph.sizes, plan.active_axes, plan.dtype)
    comms = [(n, float(sizes.elements(n.payload) * sizes.itemsize(n.dtype)), trips)
             for n, trips in body_nodes(template.nodes) if isinstance(n, Comm)]  # fmt: skip
    return min(candidates, key=lambda candidate: _serial_seconds(comms, candidate, pod))


def _serial_seconds(
    comms: list[tuple[Comm, float, int]], placement: Placement, pod: Slice
) -> float:
    """Seconds of all collectives, one after the other."""
    total = 0.0
    for comm, nbytes, trips in comms:
        spans = [span for axis in comm.axes for span in placement.spans(axis)]
        seconds = collective_seconds(comm.kind, nbytes, spans, pod.chip, pod.topology)
        total += trips * float(seconds)
    return total
