"""Plans that cannot be: each is answered with one sentence that says what to write instead."""

from typing import Any

import pytest
from plans import plan_of, small

from tpusim.base import PlanError
from tpusim.hardware import Slice
from tpusim.simulation import simulate

POD = Slice("v4", "2x2x4")
MESH = {"fsdp": 4, "tensor": 4}
PIPED = {"stage": 4, "fsdp": 4}
HIDDEN = "layer/mlp_hidden"


def fails(mesh: dict[str, int], **changes: Any) -> str:
    with pytest.raises(PlanError) as raised:
        simulate(small(mlp=250), plan_of(mesh, **changes), POD)
    text = str(raised.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("mesh", "changes", "sentence"),
    [
        ({}, {}, "plan.mesh is empty; write at least one axis"),
        (MESH, {"seq_len": {}}, "plan.seq_len is {}; it must be a whole number of at least 1"),
        (MESH, {"style": {}}, "plan.style is {}: valid are maxtext, plain"),
        ({"fsdp": 0}, {}, "plan.mesh.fsdp is 0; it must be a whole number of at least 1"),
        ({"fsdp": 4.0}, {}, "plan.mesh.fsdp is 4.0; it must be a whole number"),
        (
            {"fsdp": 4, "tensor": 2}, {},
            "fsdp=4 x tensor=2 = 8, but there are 16 devices of v4:2x2x4; write axes that "
            "multiply to 16",
        ),
        (
            {"fsdp": 4, "tensr": 4}, {},
            "plan.mesh.tensr shards nothing: no rule and no annotation names it; add one, "
            "such as act_batch = ['tensr'], or write an axis that has some: did you mean 'tensor'?",
        ),
        (
            {"fsdp": 4, "mine": 4}, {},
            "or write an axis that has some: valid are context, data, dcn_data, dcn_fsdp, "
            "dcn_stage, expert, fsdp, stage, tensor",
        ),
        (
            MESH, {"attention_block": [500, 512]},
            "plan.attention_block is [500, 512]; write the queries and the keys of a block, "
            "multiples of 128, such as [1024, 512]",
        ),
        (MESH, {"attention_block": 512}, "plan.attention_block is 512; write the queries"),
        (MESH, {"attention_block_backward": [512]}, "plan.attention_block_backward is [512];"),
        (
            MESH, {"attention_backward": "fused"},
            "plan.attention_backward is 'fused': valid are one-kernel, two-kernels",
        ),
        (MESH, {"global_batch": 0}, "plan.global_batch is 0; it must be a whole number"),
        (
            MESH, {"global_batch": 30},
            "plan.global_batch is 30, which does not divide by the 4 shards of its axes (fsdp=4); "
            "write a multiple, such as 28 or 32",
        ),
        (
            MESH, {"global_batch": 2},
            "plan.global_batch is 2, which is smaller than the 4 shards of its axes (fsdp=4); "
            "write a multiple, such as 4",
        ),
        (
            {"data": 4, "fsdp": 4}, {"global_batch": 8},
            "is smaller than the 16 shards of its axes (data=4 x fsdp=4); write a multiple, such "
            "as 16",
        ),
        (MESH, {"rules": {"act_embd": "tensor"}}, "act_embd names no dimension of the model: did "
         "you mean 'act_embed'"),
        (MESH, {"rules": {"act_embed": "tensors"}}, "plan.rules.act_embed shards over 'tensors', "
         "which is no axis of the mesh: did you mean 'tensor'?"),
        (MESH, {"annotate": {"layer/mlp_hiden": ()}}, "names 'layer/mlp_hiden', which is no tensor "
         "of the model: did you mean 'layer/mlp_hidden'"),
        (MESH, {"annotate": {HIDDEN: ("fsdp", None)}}, "gives 2 entries, but the tensor has 3 "
         "dimensions (batch, seq, mlp); write one entry for each"),
        (MESH, {"annotate": {HIDDEN: ("fsdp", None, "tensr")}}, "shards mlp over 'tensr', which is "
         "no axis of the mesh: did you mean 'tensor'?"),
        (MESH, {"annotate": {HIDDEN: ("fsdp", None, "tensor")}}, "plan.annotate.layer/mlp_hidden "
         "shards mlp (size 250) over tensor = 4, which does not divide it; choose axes whose "
         "sizes divide 250"),
        (MESH, {"remat": "mini"}, "plan.remat is 'mini': did you mean 'minimal'?"),
        (MESH, {"optimizer": "adamw"}, "plan.optimizer is 'adamw': tpusim calls it 'adam'"),
        (MESH, {"lowering": "perfect"}, "plan.lowering is 'perfect': valid are ideal, xla"),
        (MESH, {"style": "jax"}, "plan.style is 'jax': valid are maxtext, plain"),
        (MESH, {"dtype": "fp16"}, "plan.dtype is 'fp16': float16 is not modelled; write bf16"),
        (MESH, {"save": ("contxt",)}, "plan.save lists 'contxt', which is no activation of a "
         "layer: did you mean 'context'?"),
        (MESH, {"save": None}, "plan.save is None; write a list of names"),
        (MESH, {"save": ("layer/1/q",)}, "'layer/1/q', which is no activation of a layer: did you "
         "mean 'q'?"),
        (MESH, {"save": ("logits",)}, "'logits', which is no activation of a layer: valid are "
         "attended, attn_norm, context, k, k_kernel, k_rotary, layer_in, layer_out, mid, "
         "mlp_hidden, mlp_in_0, mlp_in_1, mlp_norm, mlp_out, out, q, q_kernel, q_rotary, v, "
         "v_kernel"),
        (MESH, {"placement": {"fsdp": ["x"], "tensor": ["z"]}}, "axis 'fsdp' takes 4 positions "
         "on the torus but is on ['x']"),
        (MESH, {"annotate": {HIDDEN: ("fsdp", None, ("fsdp",))}}, "plan.annotate.layer/mlp_hidden "
         "names 'fsdp' twice; an axis shards one dimension of a tensor, once"),
        (MESH, {"rules": {"act_embed": ["tensor", "tensor"]}}, "plan.rules.act_embed names "
         "'tensor' twice"),
        (MESH, {"schedule": 0}, "plan.schedule is 0: valid are"),
        (MESH, {"dispatch": []}, "plan.dispatch is []: valid are one_hot, sort"),
        (MESH, {"rules": "embed"}, "plan.rules is 'embed'; write a table, such as {'act_embed'"),
        (MESH, {"rules": {"embed": 3}}, "plan.rules.embed is 3; write an axis, a list of axes or"),
        (MESH, {"annotate": [HIDDEN]}, f"plan.annotate is ['{HIDDEN}']; write a table, such as"),
        (MESH, {"annotate": {HIDDEN: 3}}, f"plan.annotate.{HIDDEN} is 3; write an entry for each"),
        (MESH, {"annotate": {HIDDEN: [3]}}, f"plan.annotate.{HIDDEN}[0] is 3; write an axis"),
        (MESH, {"vocab_tiles": 0}, "plan.vocab_tiles is 0; it must be a whole number of at least "
         "1"),
        (MESH, {"vocab_tiles": 12}, "plan.vocab_tiles is 12, which does not divide the 128 tokens "
         "that a device has at a time (8 of batch x 16 of seq); write 8 or 16"),
        (MESH, {"vocab_tiles": 256, "microbatches": 4}, "plan.vocab_tiles is 256, which does not "
         "divide the 32 tokens that a device has at a time (2 of batch x 16 of seq); write 32"),
        (MESH, {"vocab_tiles": 128, "rules": {"act_seq": "tensor"}}, "the 32 tokens that a device "
         "has at a time (8 of batch x 4 of seq); write 32"),
        ({"fsdp": 16, "a\x1b[31mb": 1}, {}, "plan.mesh has the name 'a\\x1b[31mb'; write 1 to 80 "
         "printable characters"),
        ({"fsdp": 16, "a" * 300: 1}, {}, "...; write 1 to 80 printable characters"),
        (MESH, {"input_s": 1e290}, "plan.input_s is 1e+290; write seconds, a number from 0 to"),
        (MESH, {"microbatches": 10**9, "global_batch": 10**10}, "plan.microbatches is 1000000000; "
         "write at most 1,000,000"),
        (PIPED, {"microbatches": 10**9, "global_batch": 10**10}, "write at most 16,384, as each "
         "stage's passes are simulated one by one"),
        (PIPED, {"schedule": "interleaved", "virtual_stages": 10**6}, "the pipeline has 4 stages "
         "of 1000000 parts; write plan.virtual_stages of at most 1024"),
        (PIPED, {"schedule": "circular", "virtual_stages": 10**9}, "at most 1024"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_is_answered_with_a_sentence(
    mesh: dict[str, int], changes: dict[str, Any], sentence: str
) -> None:
    assert sentence in fails(mesh, **changes)


def test_a_rule_pads_what_an_annotation_would_refuse() -> None:
    """250 over 4 is 63 a device where a rule says so."""
    result = simulate(small(mlp=250), plan_of(MESH), POD)
    assert result.flops.padding > 0
