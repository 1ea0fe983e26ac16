"""Latent attention: what it counts, what the kernel makes of two widths, and what moves for it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import comms, flat, partitioned_of, plan_of, program_of, small
from torus import kernel_flops

from tpusim.base import ModelError, Phase
from tpusim.graph import Remat, training_step
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.partition import Purpose
from tpusim.program import AttentionWork, CollectiveKind, Compute, dumps, loads
from tpusim.simulation import simulate

POD = Slice("v5e", "4x4")
PLAN = plan_of({"fsdp": 8, "tensor": 2})
EMBED, HEADS, Q_RANK, KV_RANK, NOPE, ROPE, VALUE = 7168, 128, 1536, 512, 128, 64, 128
LATENT: dict[str, Any] = {"kv_rank": 24, "q_rank": 48, "rope_dim": 16, "v_head_dim": 20}
"""Beside the dimensions of `small`, again all different."""


def deepseek(**changes: Any) -> Transformer:
    """The attention of DeepSeek-V3 (arXiv:2412.19437, section 4.2), in a dense model."""
    given = {"layers": 1, "embed": EMBED, "mlp": 18432, "heads": HEADS, "head_dim": NOPE + ROPE,
             "vocab": 129280, "q_rank": Q_RANK, "kv_rank": KV_RANK, "rope_dim": ROPE,
             "v_head_dim": VALUE}  # fmt: skip
    return Transformer(**(given | changes))


def attention_weights() -> int:
    """Elements of the five matrices of DeepSeek-V3's attention."""
    return (
        EMBED * Q_RANK
        + Q_RANK * HEADS * (NOPE + ROPE)
        + EMBED * (KV_RANK + ROPE)
        + KV_RANK * HEADS * (NOPE + VALUE)
        + HEADS * VALUE * EMBED
    )


def test_parameters_of_a_layer_are_those_of_deepseek_v3() -> None:
    """Less the dense model's own: two tables, an MLP, and three norms over embed."""
    own = 2 * 129280 * EMBED + 3 * EMBED * 18432 + 3 * EMBED
    assert deepseek().parameter_count - own == attention_weights() + Q_RANK + KV_RANK == 187_107_328


def test_queries_may_be_projected_at_once() -> None:
    """DeepSeek-V2-Lite (arXiv:2405.04434, appendix B) brings only keys and values down."""
    less = EMBED * Q_RANK + Q_RANK * HEADS * (NOPE + ROPE) + Q_RANK
    direct = deepseek(q_rank=0)
    assert direct.parameter_count == deepseek().parameter_count - less + EMBED * HEADS * 192
    assert "q_rank" not in direct.graph(batch=1, seq_len=1).sizes


def test_values_are_as_wide_as_queries_where_nothing_is_said() -> None:
    assert deepseek(v_head_dim=0).v_head_dim == NOPE + ROPE
    assert small().v_head_dim == 0


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
@pytest.mark.parametrize("attention", ["flash", "dot"])
def test_a_step_needs_six_flops_a_weight_and_token_and_three_times_the_scores(
    kind: str, attention: str
) -> None:
    batch, seq = 2, 4096
    tokens, scores = batch * seq, batch * seq * seq
    model = deepseek(kind=kind, attention=attention)
    weights = attention_weights() + 3 * EMBED * 18432 + 129280 * EMBED
    kernel = 2 * scores * HEADS * (NOPE + ROPE + VALUE) // (2 if kind == "decoder" else 1)
    step = training_step(model.graph(batch=batch, seq_len=seq), Remat("none"))
    assert step.model_flops() == 6 * tokens * weights + 3 * kernel


def test_the_kernel_works_on_two_widths() -> None:
    """Scores, dQ and dK over that of the queries, the weighted sum, dP and dV over the values'."""
    program = program_of(small(**LATENT), PLAN, POD)
    kernels = {op.work for op, _ in flat(program.body)
               if isinstance(op, Compute) and isinstance(op.work, AttentionWork)}  # fmt: skip
    assert {(work.head_dim, work.value_width) for work in kernels} == {(32, 20)}
    assert "16 x 16 x 32 and 20" in str(program)


def test_a_program_of_two_widths_is_read_back_as_it_was_written() -> None:
    program = program_of(small(**LATENT), PLAN, POD)
    assert loads(dumps(program)) == program


def test_the_array_rounds_each_width_up_by_itself() -> None:
    """Of DeepSeek-V3, 192 is 256 on an array of 128, and 128 is itself."""
    forward = AttentionWork(2, 16, 8192, 8192, 192, "bf16", False, 0, False, 0, 0, value_dim=128)
    assert kernel_flops(forward, "forward", 128) == 2 * (256 + 128)
    assert kernel_flops(forward, "all", 128) == 2 * (3 * 256 + 2 * 128)
    assert kernel_flops(forward, "forward", 256) == 2 * (256 + 256)


@given(st.integers(1, 512), st.sampled_from(["forward", "dq", "dkv", "all"]))
def test_equal_widths_cost_what_one_width_does(width: int, kernel: str) -> None:
    one = AttentionWork(2, 16, 4096, 4096, width, "bf16", True, 0, False, 0, 0)
    two = replace(one, value_dim=width)
    matmuls = {"forward": 2, "dq": 3, "dkv": 4, "all": 5}[kernel]
    assert kernel_flops(two, kernel, 128) == kernel_flops(one, kernel, 128)
    assert kernel_flops(one, kernel, 128) == 2 * matmuls * -(-width // 128) * 128


def test_the_ranks_are_sharded_as_embed_is() -> None:
    """Over fsdp in the matrices that bring up, and heads over tensor; no matrix is left whole."""
    partitioned = partitioned_of(small(**LATENT), PLAN)
    lie = {w.name.removeprefix("layer/"): w.local.layout for w in partitioned.weights}
    fsdp, tensor = ("fsdp",), ("tensor",)
    assert lie["wq_a"] == lie["wkv_a"] == (fsdp, ())
    assert lie["wq_b"] == lie["wkv_b"] == (fsdp, tensor, ())
    assert lie["wo"] == (tensor, (), fsdp)
    assert lie["q_latent_scale"] == lie["kv_latent_scale"] == ((),)


def test_only_gradients_of_what_all_heads_share_move_over_tensor() -> None:
    """Each device brings the latents down alike, for its own heads; their gradients are sums."""
    plain, latent = (partitioned_of(small(**fields), PLAN) for fields in ({}, LATENT))
    moved = [
        {(c.tensor, c.kind, c.phase) for c, _ in comms(partitioned)
         if "tensor" in c.axes and c.purpose is not Purpose.GRADIENT}
        for partitioned in (plain, latent)
    ]  # fmt: skip
    shared = ("q_latent", "kv_latent", "k_rope")
    assert moved[1] - moved[0] == {
        (f"d(layer/{name})", CollectiveKind.ALL_REDUCE, Phase.BACKWARD) for name in shared
    }


def test_nothing_moves_for_it_without_tensor_parallelism() -> None:
    found = simulate(small(**LATENT), plan_of({"fsdp": 16}), POD)
    assert not found.flops.redundant
    assert not found.implicit_reshardings


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"q_rank": 48}, "q_rank is for latent attention; give kv_rank, or leave it out"),
        ({"rope_dim": 16}, "rope_dim is for latent attention"),
        ({"kv_rank": -1}, "kv_rank is -1; it must be at least 0"),
        ({"kv_rank": 24}, r"rope_dim is 0, but it is the part of head_dim \(32\) .* from 1 to 31"),
        ({**LATENT, "rope_dim": 32}, "rope_dim is 32, .* from 1 to 31"),
        ({**LATENT, "kv_heads": 2}, "kv_heads is 2, but with latent .* each of the 8 heads"),
        ({**LATENT, "qk_norm": True}, "qk_norm does not go with latent attention"),
        ({**LATENT, "rotary": False}, "rotary = false does not go with latent attention"),
    ],
)  # fmt: skip
def test_what_cannot_be(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence) as caught:
        small(**fields)
    assert "\n" not in str(caught.value)
