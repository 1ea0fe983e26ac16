"""Parts of a model: its layers, each once, with what stands at its ends where it belongs."""

from itertools import pairwise

import pytest
from plans import small

from tpusim.graph import Graph, ModelPart, Remat, Scan, layer_count, part_of_model
from tpusim.graph.model_parts import STAGE_IN, STAGE_OUT
from tpusim.models import Transformer

MODELS = {
    "uniform": small(layers=8),
    "tied": small(layers=8, tied_embeddings=True),
    "pattern": small(layers=8, window=4, global_every=3),
}
BOUNDS = [(0, 8), (0, 4, 8), (0, 1, 8), (0, 2, 4, 5, 8), tuple(range(9))]


def forward(model: Transformer) -> Graph:
    return model.graph(batch=2, seq_len=16)


def parts(graph: Graph, bounds: tuple[int, ...], *, later: bool = False) -> list[ModelPart]:
    return [
        part_of_model(graph, first, last, Remat(), tiled=lambda g: g, later=later)
        for first, last in pairwise(bounds)
    ]


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("model", MODELS)
def test_parts_do_the_work_of_the_whole_model(
    model: str, bounds: tuple[int, ...], later: bool
) -> None:
    graph = forward(MODELS[model])
    (whole,) = parts(graph, (0, 8))
    cut = parts(graph, bounds, later=later)
    assert layer_count(graph) == 8
    assert sum(part.graph.model_flops() for part in cut) == whole.graph.model_flops()
    shared = small(layers=8).embed * small().vocab if model == "tied" and len(cut) > 1 else 0
    weights = sum(part.graph.parameter_count for part in cut)
    assert weights == whole.graph.parameter_count + shared


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_every_weight_of_a_part_has_its_gradient(model: str, later: bool) -> None:
    for part in parts(forward(MODELS[model]), (0, 2, 5, 8), later=later):
        weights = {parameter.tensor.name for parameter in part.graph.parameters}
        made = {t.name for op in part.graph.ops for t in op.outputs}
        made |= {
            t.name for op in part.graph.ops if isinstance(op, Scan)
            for one in op.body for t in one.outputs
        }  # fmt: skip
        assert {weight for weight, _ in part.graph.gradients} == weights
        assert {gradient.name for _, gradient in part.graph.gradients} <= made


def test_what_a_part_hands_on_is_what_the_next_is_given() -> None:
    first, middle, last = parts(forward(MODELS["uniform"]), (0, 2, 5, 8))
    assert (first.given, last.made) == ((), ())
    assert first.label == "embedding + 2 layers"
    assert middle.label == "3 layers"
    assert last.label == "3 layers + head"
    for before, behind in ((first, middle), (middle, last)):
        ((made,), (given,)) = before.made, behind.given
        assert (made.name, given.name) == (STAGE_OUT, STAGE_IN)
        assert made.dims == given.dims
        assert behind.returned == behind.given
        assert f"d({STAGE_IN})" in {t.name for op in behind.graph.ops for t in op.outputs}


def test_equal_parts_are_equal() -> None:
    uniform = parts(forward(MODELS["uniform"]), (0, 2, 4, 6, 8))
    assert uniform[1] == uniform[2]
    pattern = parts(forward(MODELS["pattern"]), (0, 2, 4, 6, 8))
    assert pattern[1] != pattern[2]


def test_products_for_weights_come_after_all_others() -> None:
    """The second half reads what the first one saves for it, and makes gradients alone."""
    part = parts(forward(MODELS["uniform"]), (0, 4, 8), later=True)[0]
    ahead, behind = part.passes
    (scan,) = [op for op in part.graph.ops[ahead:behind] if isinstance(op, Scan)]
    (late,) = [op for op in part.graph.ops[behind:] if isinstance(op, Scan)]
    names = {weight for weight, _ in part.graph.gradients}
    assert late.weights_only
    assert all(t.primal in names for op in late.body for t in op.outputs)
    assert {op.name for op in late.body}.isdisjoint(op.name for op in scan.body)
    made = {t.name for op in late.body for t in op.outputs}
    read = {t.name for op in late.body for t in op.inputs} - made
    assert read == {tensor.name for tensor in late.loads}
    (kept,) = [op for op in part.graph.ops[:ahead] if isinstance(op, Scan)]
    assert read <= {tensor.name for tensor in (*scan.saves, *kept.saves)}
