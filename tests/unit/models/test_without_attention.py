"""Layers without attention: the MLP alone, on the residual stream."""

import pytest
from plans import flat, plan_of, program_of, small

from tpusim.base.errors import ModelError
from tpusim.hardware import Slice
from tpusim.models import EncoderDecoder, SelfAttention
from tpusim.program import AttentionWork, Compute
from tpusim.simulation import simulate

POD = Slice("v5p", "2x2x1")
PLAN = plan_of({"fsdp": 4})


def test_a_layer_without_attention_has_neither_its_kernel_nor_its_weights() -> None:
    """4 embed^2 parameters of queries, keys, values and projection less, and one norm."""
    whole, bare = small(), small(attention="none")
    width = whole.head_dim
    projections = whole.embed * width * (2 * whole.heads + 2 * whole.kv_heads)
    assert whole.parameter_count - bare.parameter_count == whole.layers * (
        projections + whole.embed
    )
    names = [op.name for op, _ in flat(program_of(bare, PLAN, POD).body) if isinstance(op, Compute)]
    assert not any("attn" in name or "wq" in name for name in names)
    works = [op.work for op, _ in flat(program_of(bare, PLAN, POD).body) if hasattr(op, "work")]
    assert not any(isinstance(work, AttentionWork) for work in works)
    assert simulate(bare, PLAN, POD).step_time_s < simulate(whole, PLAN, POD).step_time_s


@pytest.mark.parametrize("keys", [{"experts": 4, "experts_per_token": 2}, {"parallel": True}])
def test_any_layer_may_be_without(keys: dict[str, object]) -> None:
    found = simulate(small(attention="none", **keys), PLAN, POD)
    assert found.breakdown_s.get("attention", 0) == 0


def test_a_decoder_that_reads_an_encoder_needs_attention() -> None:
    with pytest.raises(ModelError, match="a decoder reads its encoder by attention; write 'dot'"):
        EncoderDecoder(
            layers=2, embed=64, mlp=128, heads=2, vocab=256, attention=SelfAttention(kernel="none")
        )
