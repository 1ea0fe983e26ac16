"""Transformers of joined tokens: released numbers of weights, and FLOPs in closed form."""

from dataclasses import replace
from typing import Any

import pytest

import tpusim as ts
from tpusim.base import ModelError, PlanError
from tpusim.graph import GraphWriter, Pointwise, Remat, Scan, training_step, walk
from tpusim.models import JointTransformer, names, pieces
from tpusim.program import Collective, walk_ops

PARAMETERS = {
    "flux-dev": 11_901_408_320,
    "flux-schnell": 11_891_178_560,
    "stable-diffusion-3-medium": 2_028_328_000,
    "stable-diffusion-3.5-large": 8_056_627_520,
}
"""Of the released transformers; the fixed positions of Stable Diffusion 3 are no weights."""

SMALL = JointTransformer(
    double_layers=2, single_layers=3, heads=4, head_dim=16, latent=16, latent_channels=4, text=32,
    text_embed=48, pooled=24, attention="dot",
)  # fmt: skip
POD = ts.Slice("v5e", "4x4")


def plan(mesh: dict[str, int], **keys: Any) -> ts.Plan:
    return ts.Plan(mesh=mesh, global_batch=16, **keys)


def test_every_published_model_is_counted() -> None:
    assert set(names(JointTransformer)) == set(PARAMETERS)


@pytest.mark.parametrize(("name", "count"), PARAMETERS.items())
def test_weights_are_those_released(name: str, count: int) -> None:
    assert JointTransformer.published(name).parameter_count == count


@pytest.mark.parametrize("attention", ["dot", "flash"])
@pytest.mark.parametrize("scanned", [True, False])
def test_flops_are_those_of_weights_and_scores(attention: str, scanned: bool) -> None:
    """A token passes the matrices of its stream, an example those of the vector; all see all."""
    model = replace(SMALL, attention=attention, scanned=scanned)
    batch, text, image, width = 8, 32, 64, 64
    both = text + image
    scores = 2 * width * both**2
    double = both * (4 + 8) * width**2 + 2 * 6 * width**2 + scores
    single = both * (4 + 8) * width**2 + 3 * width**2 + scores
    vector = (256 + 24 + 256 + 3 * width + 2 * width) * width
    ends = image * 16 * width * 2 + text * 48 * width
    flops = 2 * batch * (2 * double + 3 * single + vector + ends)
    assert model.graph(batch=batch).model_flops() == flops


def test_a_last_layer_that_makes_no_text_has_no_weights_for_it() -> None:
    """Two rows of a modulation in place of six, and neither a projection nor an MLP."""
    model = replace(SMALL, single_layers=0)
    ends, width = replace(model, text_ends=True), 64
    left_out = 4 * (width**2 + width) + (width**2 + width) + (8 * width**2 + 5 * width)
    assert model.parameter_count - ends.parameter_count == left_out
    scans = [op for op in ends.graph(batch=2).ops if isinstance(op, Scan)]
    assert [len(scan.carries) for scan in scans] == [2, 1]


def test_tokens_are_counted_once() -> None:
    assert SMALL.graph(batch=8).tokens == 8 * (32 + 64)


def test_joined_and_parted_tensors_are_copies() -> None:
    """Each token is read once and written once, forward and backward, and has no FLOPs."""
    step = training_step(SMALL.graph(batch=8), Remat("none"))
    copies = [
        op for op, _ in walk(step.ops)
        if isinstance(op, Pointwise) and any("joint_seq" in t.dims for t in op.inputs + op.outputs)
        and any("text_seq" in t.dims for t in op.inputs + op.outputs)
    ]  # fmt: skip
    assert len(copies) == 2 * (3 + 1 + 1)
    sizes = step.sizes
    for op in copies:
        read, written = (
            sum(sizes[t.dims[1]] for t in tensors) for tensors in (op.inputs, op.outputs)
        )
        assert (read, written, op.flops) == (96, 96, 0.0)


@pytest.mark.parametrize(
    "mesh",
    [{"data": 16}, {"fsdp": 16}, {"fsdp": 4, "tensor": 4}, {"fsdp": 4, "context": 4}],
    ids=str,
)
@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_flops_are_the_same_on_any_mesh(mesh: dict[str, int], remat: str) -> None:
    result = ts.simulate(SMALL, plan(mesh, remat=remat), POD)
    alone = ts.simulate(SMALL, plan({"data": 1}, remat=remat), ts.Slice("v5e", "1x1"))
    of_inputs = 2 * 16 * 64 * (64 * 16 + 32 * 48 + 256 + 24 + 256)
    assert result.flops.model == 3 * SMALL.graph(batch=16).model_flops() - of_inputs
    assert result.flops.model == alone.flops.model
    assert result.flops.recompute == alone.flops.recompute


def test_sharded_sequences_are_gathered_to_be_joined() -> None:
    """A device's part of both has tokens of several devices; where it has all, nothing moves."""
    for mesh, wanted in (({"fsdp": 16}, False), ({"fsdp": 4, "context": 4}, True)):
        program = ts.simulate(SMALL, plan(mesh, remat="none"), POD).program
        ops = (op for op, _ in walk_ops(program.body) if isinstance(op, Collective))
        gathered = {op.scope for op in ops if op.kind == "all-gather"}
        joined = {f"double/{stream}_q_norm" for stream in ("text", "image")}
        assert (joined <= gathered) == wanted


def test_bad_models_and_plans_say_what_to_write() -> None:
    with pytest.raises(ModelError, match="latent is 15, which patch 2 does not divide; write a mu"):
        replace(SMALL, latent=15)
    with pytest.raises(ModelError, match="text_ends is true, but 3 single layers read the text"):
        replace(SMALL, text_ends=True)
    with pytest.raises(PlanError, match="cannot be cut into stages: its layers are not one row"):
        ts.simulate(SMALL, plan({"stage": 5, "data": 3}), ts.Slice("v5e", "4x4"))
    w = GraphWriter("mine", {"batch": 1, "a_seq": 2, "b_seq": 3, "both_seq": 6, "embed": 4})
    parts = [w.input(name, ("batch", f"{name}_seq", "embed"), "compute") for name in "ab"]
    with pytest.raises(ModelError, match=r"mine: x joins 2 \+ 3 to both_seq of 6"):
        pieces.joined(w, "x", parts, "both_seq")
