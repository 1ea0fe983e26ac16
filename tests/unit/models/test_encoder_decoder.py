"""Encoder-decoders: published numbers of weights, FLOPs in closed form, and the shared memory."""

from dataclasses import replace

import pytest

import tpusim as ts
from tpusim.base import ModelError, PlanError
from tpusim.graph import COMPUTE, Remat, Scan, training_step
from tpusim.models import EncoderDecoder, MoE, names

PARAMETERS = {
    "t5-small": 60_506_624, "t5-base": 222_903_552, "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336, "t5-11b": 11_307_321_344,
    "t5-v1.1-small": 76_961_152, "t5-v1.1-base": 247_577_856, "t5-v1.1-large": 783_150_080,
    "t5-v1.1-xl": 2_849_757_184, "t5-v1.1-xxl": 11_135_332_352,
    "mt5-small": 300_176_768, "mt5-base": 582_401_280, "mt5-large": 1_229_581_312,
    "mt5-xl": 3_742_619_648, "mt5-xxl": 12_921_057_280,
}  # fmt: skip
"""Elements of the released checkpoints, with 32 biases a head of encoder and of decoder each."""

ROUNDED = {
    "switch-base": (7.4e9, 0.01), "transformer-big": (213e6, 0.01),
    "gshard-m4-12l-128e": (12.5e9, 0.06), "gshard-m4-12l-512e": (50e9, 0.06),
    "gshard-m4-12l-2048e": (200e9, 0.06), "gshard-m4-36l-128e": (37e9, 0.07),
    "gshard-m4-36l-512e": (150e9, 0.06), "gshard-m4-36l-2048e": (600e9, 0.06),
    "transformer-big-mlperf": (210e6, 0.01),
    "parti-350m": (350e6, 0.11), "parti-750m": (750e6, 0.06), "parti-3b": (3e9, 0.03),
    "parti-20b": (20e9, 0.03),
}  # fmt: skip
"""As the papers round them: Switch (arXiv:2101.03961, table 9), the transformer (arXiv:1706.03762,
table 3), M4 (arXiv:2006.16668, table 1), Parti (arXiv:2206.10789, table 1)."""

SMALL = EncoderDecoder(layers=2, decoder_layers=3, embed=64, mlp=256, heads=4, vocab=512)
POD = ts.Slice("v5e", "4x4")


def plan(**keys: object) -> ts.Plan:
    given = {"mesh": {"fsdp": 4, "tensor": 4}, "seq_len": 128, "global_batch": 16} | keys
    return ts.Plan(**given)


def test_every_published_model_is_counted() -> None:
    assert set(names(EncoderDecoder)) == set(PARAMETERS) | set(ROUNDED)


@pytest.mark.parametrize(("name", "count"), PARAMETERS.items())
def test_weights_are_those_released_less_the_biases_of_positions(name: str, count: int) -> None:
    model = EncoderDecoder.published(name)
    assert model.parameter_count == count - 2 * 32 * model.heads


@pytest.mark.parametrize(("name", "rounded"), ROUNDED.items())
def test_weights_are_near_those_of_papers(name: str, rounded: tuple[float, float]) -> None:
    count, tolerance = rounded
    assert EncoderDecoder.published(name).parameter_count == pytest.approx(count, rel=tolerance)


@pytest.mark.parametrize("kernel", ["dot", "flash"])
def test_flops_are_those_of_weights_and_scores(kernel: str) -> None:
    """Each token passes its side's weights; a target's attends to half of it and to the source."""
    attention = replace(SMALL.attention, kernel=kernel)
    model = replace(SMALL, attention=attention, target_len=32)
    batch, source, target, width = 8, 128, 32, 64
    own = 4 * width**2 + 2 * width * 256
    encoder = 2 * (own * source + 2 * width * source**2)
    keys = 2 * width**2 * source + 2 * width**2 * target
    decoder = 3 * (own * target + keys + width * target**2 + 2 * width * target * source)
    flops = 2 * batch * (encoder + decoder + width * 512 * target)
    assert model.graph(batch=batch, seq_len=source).model_flops() == flops


def test_layers_share_the_result_of_the_encoder() -> None:
    """It is saved once, read by each iteration, and its gradient has its own dtype."""
    step = training_step(SMALL.graph(batch=4, seq_len=32), Remat("full"))
    scans = {op.name: op for op in step.ops if isinstance(op, Scan)}
    forward, back = scans["decoders"], scans["decoders/d"]
    assert [t.short for t in forward.saves] == ["layer_in"]
    assert [t.name for t in back.shared] == ["encoder_norm"]
    ((inside, outside),) = back.sums
    assert (inside.primal, outside.primal) == ("encoder_norm", "encoder_norm")
    assert outside.dtype == COMPUTE


def test_a_source_and_a_target_have_their_own_slots_and_words() -> None:
    moe = MoE(experts=4, experts_per_token=2, expert_every=2)
    model = replace(SMALL, decoder_layers=0, moe=moe, target_vocab=256, target_len=64)
    graph = model.graph(batch=4, seq_len=128)
    assert graph.sizes["slot"] == 64
    assert graph.sizes["target.slot"] == 32
    tables = [p.tensor for p in graph.parameters if "embedding" in p.tensor.name]
    assert [tensor.dims[0] for tensor in tables] == ["vocab", "target.vocab"]


@pytest.mark.parametrize(
    "mesh", [{"data": 16}, {"fsdp": 16}, {"fsdp": 4, "tensor": 4}, {"fsdp": 4, "context": 4}]
)
def test_it_runs_on_any_mesh(mesh: dict[str, int]) -> None:
    result = ts.simulate(SMALL, plan(mesh=mesh), POD)
    assert 0 < result.mfu < 1


def test_experts_of_both_sides_are_exchanged() -> None:
    moe = MoE(experts=16, experts_per_token=2, expert_every=2)
    model = replace(SMALL, layers=4, decoder_layers=4, moe=moe)
    found = plan(mesh={"expert": 16}, capacity_factor=1.25)
    assert ts.simulate(model, found, POD).step_time_s > 0


def test_bad_models_and_plans_say_what_to_write() -> None:
    with pytest.raises(ModelError, match="did you mean 't5-base'"):
        EncoderDecoder.published("t5-bas")
    with pytest.raises(ModelError, match="embed 64 does not divide into 5 heads; give head_dim"):
        replace(SMALL, heads=5, head_dim=0)
    even, staged = replace(SMALL, decoder_layers=2), {"mesh": {"stage": 2, "fsdp": 8}}
    with pytest.raises(PlanError, match="the layers of encoder-decoder are not alike from one"):
        ts.simulate(even, plan(microbatches=2, schedule="circular", **staged), POD)
    with pytest.raises(PlanError, match="embedding is a weight of stages 0, 2, 3, but only the"):
        ts.simulate(even, plan(microbatches=4, mesh={"stage": 4, "fsdp": 4}), POD)
    with pytest.raises(PlanError, match="the model's target_seq is 30, which does not divide by"):
        ts.simulate(replace(SMALL, target_len=30), plan(mesh={"fsdp": 4, "context": 4}), POD)
