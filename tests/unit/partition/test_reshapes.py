"""Reshapes of sharded tensors: what moves before and after their dimensions change."""

import pytest

from tpusim.graph import Graph, GraphWriter, Remat, training_step
from tpusim.partition import CollectiveNode
from tpusim.pipeline.planned_step import partitioned_graph
from tpusim.plan import Plan
from tpusim.program import CollectiveKind

RULES = {"act_batch": "data", "act_rois": "spatial", "act_side": "spatial"}


def step_of(sided: bool) -> Graph:
    """Write examples of regions [batch, rois, side, embed], which become one row of regions.

    sided: rows of regions are divided along their sides, so that axis moves there and back.
    """
    side = "side" if sided else "length"
    w = GraphWriter("regions", {"batch": 8, "rois": 16, side: 8, "embed": 64, "rois.batch": 128})
    x = w.dense("first", w.input("x", ("batch", "rois", side, "embed"), "compute"), "embed")
    rows = w.reshape("rows", x, ("rois.batch", side, "embed"))
    made = w.dense("second", rows, "embed")
    back = w.reshape("back", made, ("batch", "rois", side, "embed"))
    loss = w.pointwise("loss", (back,), ("batch",), 1.0, over=("rois", side, "embed"))
    return training_step(w.graph(loss), Remat("none"))


def moves(sided: bool) -> dict[str, tuple[CollectiveKind, str]]:
    rules = RULES if sided else {name: axis for name, axis in RULES.items() if name != "act_side"}
    plan = Plan(mesh={"data": 2, "spatial": 4}, global_batch=8, rules=rules)
    graph = partitioned_graph(step_of(sided), plan)
    return {
        node.tensor: (node.kind, "+".join(node.axes))
        for node in graph.nodes
        if isinstance(node, CollectiveNode) and node.kind is not CollectiveKind.ALL_REDUCE
    }


def test_an_axis_moves_to_a_dimension_that_stays_and_back() -> None:
    """Of [batch, rois] the batch alone can be the rows; `spatial` goes to their sides and back.

    GSPMD exchanges them too (arXiv:2105.04663, section 4.5).
    """
    exchange = (CollectiveKind.ALL_TO_ALL, "spatial")
    found = moves(sided=True)
    assert found
    assert set(found.values()) == {exchange}


def test_an_axis_of_a_merged_dimension_has_nowhere_to_go() -> None:
    assert (CollectiveKind.ALL_GATHER, "spatial") in moves(sided=False).values()


@pytest.mark.parametrize("sided", [True, False])
def test_the_first_dimension_keeps_its_axis(sided: bool) -> None:
    assert all("data" not in axes for _, axes in moves(sided).values())
