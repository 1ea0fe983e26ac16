"""Meena: the weights of its blocks, its FLOPs in closed form, and sharded runs."""

import pytest

import tpusim as ts
from tpusim.base import ModelError
from tpusim.models import EvolvedTransformer

D = 2560
ENCODER = 2 + 4 + 1.5 + 2 + 4 + 8
"""Squares of the width: gated unit, convolutions 1 and 3, the separable one, attention, MLP."""
DECODER = 4 * 4 + 2 + 0.5 + 2 + 8
"""Four attentions, three separable convolutions, MLP."""
TAPS = 9 * 4 + 13 * (11 + 7 + 7 * 2)
"""Depthwise taps of all channels, over the width."""
SCALES = (4 + 4) + 13 * (5 + 2) + 2
"""Scales of norms, over the width: those of branches are four and two times as wide."""


def test_weights_are_those_published() -> None:
    """2.6B (arXiv:2001.09977, section 3.3)."""
    model = EvolvedTransformer()
    matrices = int((ENCODER + 13 * DECODER) * D**2)
    assert model.parameter_count == matrices + (8192 + TAPS + SCALES) * D
    assert model.parameter_count == pytest.approx(2.6e9, rel=0.01)


def test_flops_are_those_of_weights_and_scores() -> None:
    """Without the depthwise convolutions, which are under 1 %."""
    source, target, batch = 128, 64, 2
    keys = 13 * 2 * 2 * D**2
    encoder = source * (ENCODER * D**2 + keys + 2 * D * source)
    decoder = target * (13 * DECODER * D**2 - keys + 8192 * D)
    scores = 13 * 2 * target * D * (target + 2 * source)
    graph = EvolvedTransformer(target_len=target).graph(batch=batch, seq_len=source)
    flops = 2 * batch * (encoder + decoder + scores)
    assert graph.model_flops() == pytest.approx(flops, rel=0.01)


@pytest.mark.parametrize("mesh", [{"data": 16}, {"fsdp": 16}, {"fsdp": 4, "tensor": 4}])
def test_it_runs_on_any_mesh(mesh: dict[str, int]) -> None:
    model = EvolvedTransformer(embed=256, heads=4, decoder_blocks=2)
    plan = ts.Plan(mesh=mesh, seq_len=128, global_batch=16)
    assert 0 < ts.simulate(model, plan, ts.Slice("v5e", "4x4")).mfu < 1


def test_a_width_divides_into_heads_and_halves() -> None:
    said = "embed 100 does not divide into 8 heads and in halves; write a multiple of 16"
    with pytest.raises(ModelError, match=said):
        EvolvedTransformer(embed=100, heads=8)
