"""BERT: published counts, FLOPs and bytes of a loss of some positions, and what they move."""

import re
from math import prod

import pytest

import tpusim as ts
from tpusim.base import ModelError, PlanError
from tpusim.graph import Einsum, Gather, Remat, training_step, walk
from tpusim.models import Bert
from tpusim.program import Collective, walk_ops

POD = ts.Slice("v5e", "4x4")
TINY = {"layers": 2, "embed": 64, "mlp": 256, "heads": 4, "vocab": 512, "positions": 64}


def tiny(**changes: object) -> Bert:
    return Bert(**{**TINY, "predictions": 8, **changes})


@pytest.mark.parametrize(
    ("name", "count"), [("bert-base", 110_106_428), ("bert-large", 336_226_108)]
)
def test_bert_has_its_published_parameters(name: str, count: int) -> None:
    """`BertForPreTraining` of transformers; each part of the head by hand.

    The encoder of bert-large-uncased has 335,141,888 with its pooler (bert-base 109,482,240).
    """
    model = Bert.published(name)
    embed = model.embed
    head = embed * embed + 3 * embed + 30522 + 2 * embed + 2
    assert model.parameter_count == count
    assert count - head == {"bert-base": 109_482_240, "bert-large": 335_141_888}[name]
    assert Bert.published(name, predictions=76).parameter_count == count


@pytest.mark.parametrize(("length", "predictions"), [(512, 76), (128, 20), (512, 0)])
def test_flops_of_bert_large(length: int, predictions: int) -> None:
    """2 a weight of a matmul and position that it reads, and 4 s s d a layer for the scores."""
    embed, mlp, batch = 1024, 4096, 3
    layers = 24 * (length * (4 * embed**2 + 2 * embed * mlp) + 2 * length**2 * embed)
    head = (predictions or length) * (embed**2 + embed * 30522)
    rest = embed**2 + 2 * embed + length * 2 * embed
    model = Bert.published("bert-large", predictions=predictions)
    forward = batch * 2 * (layers + head + rest)
    assert model.graph(batch=batch, seq_len=length).model_flops() == forward
    step = training_step(model.graph(batch=batch, seq_len=length), Remat("none"))
    assert step.model_flops() == 3 * forward - batch * 2 * length * 2 * embed


def test_a_share_of_the_positions_is_the_same_share_of_the_logits() -> None:
    """76 of 512 positions: 0.148 of the head's FLOPs, and of the bytes of the logits in HBM."""
    found = {}
    for count in (76, 512):
        plan = ts.Plan(mesh={"data": 16}, global_batch=64, seq_len=512, style="maxtext")
        result = ts.simulate(Bert.published("bert-base", predictions=count), plan, POD)
        work = {op.name: op.work for op, _ in walk_ops(result.program.body) if hasattr(op, "work")}
        found[count] = work["logits"]
        assert work["logits"].write_bytes == 4 * count * 30522 * 2
        assert (work["logits"].m, work["logits"].k, work["logits"].n) == (4 * count, 768, 30522)
    assert found[76].m * 512 == found[512].m * 76


@pytest.mark.parametrize("remat", ["full", "dots", "none"])
def test_meshes_run_and_flops_are_conserved(remat: str) -> None:
    found = set()
    for mesh in ({"data": 16}, {"fsdp": 16}, {"fsdp": 4, "tensor": 4}, {"data": 4, "context": 4}):
        plan = ts.Plan(mesh=mesh, global_batch=64, seq_len=32, remat=remat)
        result = ts.simulate(tiny(), plan, POD)
        found.add((result.flops.model, result.flops.recompute))
    assert len(found) == 1


@pytest.mark.parametrize("tiles", [1, 2, 4])
def test_tiles_of_the_loss_are_of_examples(tiles: int) -> None:
    """The same FLOPs, and as many times less logits at a time."""
    plan = ts.Plan(mesh={"data": 16}, global_batch=64, seq_len=32, vocab_tiles=tiles)
    result = ts.simulate(tiny(), plan, POD)
    assert result.flops.model == ts.simulate(tiny(), plan.replace(vocab_tiles=1), POD).flops.model
    works = [op.work for op, _ in walk_ops(result.program.body) if op.name.endswith("logits")]
    assert {work.m for work in works if hasattr(work, "m")} >= {4 * 8 // tiles}


def _moved(mesh: dict[str, int], tensor: str, **keys: object) -> list[tuple[str, str, int]]:
    plan = ts.Plan(mesh=mesh, global_batch=64, seq_len=32, lowering="ideal", **keys)
    program = ts.simulate(tiny(), plan, POD).program
    ops = (op for op, _ in walk_ops(program.body) if isinstance(op, Collective))
    return [(str(op.kind), "+".join(op.axes), round(op.bytes)) for op in ops if op.scope == tensor]


def test_the_gather_moves_nothing_unless_positions_are_sharded() -> None:
    """Each device chooses among its own examples, and among its own columns.

    With positions over four devices, rows of the others add zero: an all-reduce of what is chosen,
    [16 examples, 8, 64] in bf16. Its gradient adds into the own positions and moves nothing.
    """
    for mesh in ({"data": 16}, {"fsdp": 16}, {"data": 4, "tensor": 4}):
        assert _moved(mesh, "chosen") == []
    columns = {"act_embed": "tensor"}
    assert _moved({"data": 4, "tensor": 4}, "chosen", rules=columns) == []
    moved = _moved({"data": 4, "context": 4}, "chosen")
    assert moved == [("all-reduce", "context", 16 * 8 * 64 * 2)]
    assert _moved({"data": 4, "context": 4}, "d(final_norm)") == []


def test_its_gradient_is_added_into_zeros_of_all_positions() -> None:
    graph = tiny().graph(batch=4, seq_len=32)
    step = training_step(graph, Remat("full"))
    sizes = step.sizes
    (gather,) = (op for op, _ in walk(graph.ops) if isinstance(op, Gather) and op.dim == "seq")
    assert prod(sizes[dim] for dim in gather.output.dims) == 4 * 8 * 64
    (scatter,) = (op for op, _ in walk(step.ops) if op.name == "choose/dw")
    assert prod(sizes[dim] for dim in scatter.outputs[0].dims) == 4 * 32 * 64


def test_segments_are_found_by_a_matmul_with_a_mask_that_has_no_gradient() -> None:
    step = training_step(tiny().graph(batch=4, seq_len=32), Remat("none"))
    found = [op.name for op, _ in walk(step.ops) if isinstance(op, Einsum) and "segment" in op.name]
    assert found == ["segment_rows", "segment_rows/dw"]


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ModelError, match="embed 64 does not divide into 5 heads; write heads"):
        tiny(heads=5)
    with pytest.raises(ModelError, match="predictions is -1; it must be at least 0"):
        tiny(predictions=-1)
    text = "plan.seq_len is 128, and bert has 64 positions; write seq_len = 64 or less, or"
    with pytest.raises(PlanError, match=re.escape(text)):
        tiny().graph(batch=1, seq_len=128)
    text = "predictions is 65, but a sequence has at most 64 positions; write predictions = 64 or"
    with pytest.raises(ModelError, match=re.escape(text)):
        tiny(predictions=65)
