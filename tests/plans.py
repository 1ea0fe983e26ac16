"""Models, plans and ways to look at their partitions that several tests share."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from steps import partitioned_graph, planned_graph

from tpusim.frames import ForwardFrame, TrainingFrame, asked_place, choices_of
from tpusim.frames import sizes_of as sizes_in
from tpusim.graph import Graph
from tpusim.hardware import Placement, Slice, placements
from tpusim.lowering import BodyChoices
from tpusim.models import Transformer
from tpusim.partition import CollectiveNode, ComputeNode, PartitionedGraph, Sizes, body_nodes
from tpusim.plan import Plan
from tpusim.program import Collective, Compute, Loop, Op, Program, Transfer
from tpusim.simulation import simulate

ENCODER_480B = Transformer(
    name="bert-480b", kind="encoder", layers=64, embed=16384, mlp=131072, heads=256, kv_heads=1,
    head_dim=128, vocab=30522, gated=True, rotary=False, attention="dot", tied_embeddings=True,
)  # fmt: skip
PLAN_480B = Plan(
    mesh={"fsdp": 256, "tensor": 8}, seq_len=512, global_batch=4096, rules={"act_embed": "tensor"}
)
MIB = 2**20
GIB = 2**30


@lru_cache(maxsize=1)
def v4_2048() -> Slice:
    return Slice("v4", "8x16x16")


def small(**changes: Any) -> Transformer:
    """A transformer whose dimensions are all different, so that no two can be mistaken."""
    given = {"layers": 3, "embed": 64, "mlp": 256, "heads": 8, "head_dim": 32, "vocab": 512}
    return Transformer(**(given | changes))


def plan_of(mesh: dict[str, int], **changes: Any) -> Plan:
    given = {"seq_len": 16, "global_batch": 32}
    return Plan(mesh=mesh, **(given | changes))


def graph_of(model: Transformer, plan: Plan) -> Graph:
    return planned_graph(model, plan)


def partitioned_of(model: Transformer, plan: Plan) -> PartitionedGraph:
    return partitioned_graph(graph_of(model, plan), plan)


def program_of(model: Transformer, plan: Plan, pod: Slice) -> Program:
    return simulate(model, plan, pod).program


def any_program_of(model: Transformer, plan: Plan, pod: Slice) -> Program:
    """The program on the first placement there is, for laws that hold on any."""
    graph, partitioned = graph_of(model, plan), partitioned_of(model, plan)
    return lowered(graph, partitioned, plan, pod, placements(pod, plan.mesh)[0])


def lowered(
    graph: Graph, partitioned: PartitionedGraph, plan: Plan, pod: Slice, placement: Placement
) -> Program:
    """The program of a step on a placement."""
    return TrainingFrame.of(graph, plan, asked_place(pod, placement, choices_of(plan))).program(
        graph, partitioned
    )


def lowered_forward(
    graph: Graph,
    partitioned: PartitionedGraph,
    choices: BodyChoices,
    pod: Slice,
    placement: Placement,
) -> Program:
    """The program of a forward pass alone on a placement."""
    place = asked_place(pod, placement, choices)
    return ForwardFrame(choices, sizes_in(graph, choices), place).program(graph, partitioned)


def tiles_weights(plan: Plan) -> bool:
    """Whether a plan shards weights over all axes of its mesh."""
    return choices_of(plan).tiles_weights()


def sizes_of(model: Transformer, plan: Plan) -> Sizes:
    return Sizes(
        graph_of(model, plan).sizes, plan.active_axes, plan.dtypes.compute, plan.dtypes.param
    )


def comms(partitioned: PartitionedGraph) -> list[tuple[CollectiveNode, int]]:
    """The logical collectives of a step, with how often each runs."""
    return [
        (node, n) for node, n in body_nodes(partitioned.nodes) if isinstance(node, CollectiveNode)
    ]


def calcs(partitioned: PartitionedGraph) -> list[tuple[ComputeNode, int]]:
    return [(node, n) for node, n in body_nodes(partitioned.nodes) if isinstance(node, ComputeNode)]


def payload(comm: CollectiveNode, sizes: Sizes) -> float:
    """Bytes of the full tensor on one device."""
    return sizes.elements(comm.payload) * sizes.itemsize(comm.dtype)


def flat(
    body: tuple[Op, ...], times: int = 1
) -> Iterator[tuple[Compute | Collective | Transfer, int]]:
    """Every operation that is not a loop, with the number of times that it runs."""
    for op in body:
        if isinstance(op, Loop):
            yield from flat(op.body, times * op.trips)
        else:
            yield op, times


def holders(body: tuple[Op, ...], times: int = 1) -> Iterator[tuple[Op, int]]:
    """Every operation and every loop, with the number of times that it runs."""
    for op in body:
        yield op, times
        if isinstance(op, Loop):
            yield from holders(op.body, times * op.trips)


def loop(body: tuple[Op, ...], name: str) -> Loop:
    """The loop of that name, wherever it is."""
    found = [op for op in _loops(body) if op.name == name]
    assert len(found) == 1, name
    return found[0]


def _loops(body: tuple[Op, ...]) -> Iterator[Loop]:
    for op in body:
        if isinstance(op, Loop):
            yield op
            yield from _loops(op.body)
