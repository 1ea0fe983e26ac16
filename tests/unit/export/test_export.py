"""Exported steps: they run on eight CPU devices, and train the model of the plan."""

import ast
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from extent import sample
from steps import planned_graph

import tpusim as ts
from tpusim.export import export_step
from tpusim.models import (
    Architecture,
    EncoderDecoder,
    Gnmt,
    JointTransformer,
    MoE,
    Transformer,
)
from tpusim.plan import Plan

SIZES = {
    "layers": 2,
    "embed": 128,
    "mlp": 256,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 32,
    "vocab": 512,
}
WIDE = SIZES | {"head_dim": 128}
POD = ts.Slice("v5e", "2x4")
SCRIPT = Path(__file__).with_name("run_exported.py")


def model(sizes: dict[str, int] = SIZES, **keys: Any) -> Transformer:
    return Transformer(**{"attention": "dot", **sizes, **keys})


def plan(mesh: dict[str, int], seq_len: int = 64, global_batch: int = 8, **keys: Any) -> Plan:
    f32 = {"dtype": "f32", "grad_dtype": "f32", "param_dtype": "f32"}
    return Plan(mesh=mesh, seq_len=seq_len, global_batch=global_batch, **{**f32, **keys})


FSDP_TENSOR = {"fsdp": 4, "tensor": 2}
PIPELINE = {"mesh": {"stage": 4, "fsdp": 2}, "global_batch": 48, "microbatches": 4}
IN_ROUNDS = {"global_batch": 16, "microbatches": 4, "schedule": "circular", "virtual_stages": 2}
CIRCULAR = PIPELINE | {"schedule": "circular"}
EXPERTS = {"experts": 4, "experts_per_token": 2, "expert_mlp": 64}
TRANSLATION = EncoderDecoder(layers=4, embed=64, mlp=128, heads=4, vocab=512)
JOINT = JointTransformer(
    double_layers=2,
    single_layers=2,
    heads=4,
    head_dim=16,
    latent=16,
    latent_channels=4,
    text=64,
    text_embed=32,
    pooled=16,
    attention="dot",
)
CASES = {
    "joined tokens": (JOINT, plan(FSDP_TENSOR, seq_len=0)),
    "joined tokens in context": (JOINT, plan({"fsdp": 2, "context": 4}, seq_len=0)),
    "a last layer without text": (
        replace(JOINT, single_layers=0, text_ends=True, scanned=False),
        plan(FSDP_TENSOR, seq_len=0, remat="none"),
    ),
    "dot attention": (model(), plan(FSDP_TENSOR)),
    "encoder and decoder": (TRANSLATION, plan(FSDP_TENSOR)),
    "experts of both sides": (
        replace(TRANSLATION, moe=MoE(experts=4, experts_per_token=2, expert_every=2)),
        plan({"data": 2, "expert": 4}, capacity_factor=2.0),
    ),
    "fused attention": (
        model(WIDE, attention="flash"),
        plan({"data": 2, "fsdp": 2, "tensor": 2}, 128, remat="minimal"),
    ),
    "few K/V heads": (
        model(WIDE, attention="flash", heads=8),
        plan({"fsdp": 2, "tensor": 4}, 128, 4, remat="none"),
    ),
    "one K/V head": (
        model(WIDE, attention="flash", heads=8, kv_heads=1),
        plan({"fsdp": 2, "tensor": 4}, 128, 4, remat="dots"),
    ),
    "one matrix of grouped queries": (
        model(WIDE, attention="flash", heads=8, kv_heads=4, fused_qkv=True, qkv_bias=True),
        plan({"fsdp": 2, "tensor": 4}, 128, 4, remat="full"),
    ),
    "microbatches": (
        model(),
        plan({"fsdp": 8}, global_batch=16, microbatches=2, moment_dtype="bf16"),
    ),
    "updates in parts": (
        model(),
        plan({"data": 4, "fsdp": 2}, 64, 16, microbatches=2, weight_update_axes=["data"]),
    ),
    "updates in parts by LAMB": (
        model(),
        plan({"data": 4, "tensor": 2}, optimizer="lamb", weight_update_axes=["data"]),
    ),
    "updates in parts by Muon": (
        model(),
        plan({"data": 4, "fsdp": 2}, optimizer="muon", weight_update_axes=["data"]),
    ),
    "balanced context": (
        model(WIDE, attention="flash"),
        plan({"fsdp": 2, "context": 4}, 512, 2),
    ),
    "context": (
        model(WIDE, attention="flash"),
        plan({"fsdp": 2, "context": 4}, 512, 2, context_balanced=False),
    ),
    "heads for tokens": (
        model(WIDE, attention="flash"),
        plan({"fsdp": 4, "context": 2}, 256, 4, context_exchange="all-to-all"),
    ),
    "sequence-sharded norms": (model(), plan(FSDP_TENSOR, rules={"act_residual_seq": "tensor"})),
    "experts": (
        model(**EXPERTS),
        plan({"fsdp": 2, "expert": 2, "tensor": 2}, capacity_factor=1.5, remat="minimal"),
    ),
    "gathered experts": (
        model(**EXPERTS, shared_mlp=64, dense_layers=1),
        plan({"fsdp": 2, "expert": 4}, capacity_factor=1.0, expert_exchange="gather"),
    ),
    "sorted experts": (
        model(**EXPERTS), plan({"fsdp": 2, "expert": 2, "tensor": 2}, remat="minimal"),
    ),
    "sorted experts on each device": (model(**EXPERTS), plan({"fsdp": 4, "tensor": 2})),
    "sorted experts beside a shared one": (
        model(**EXPERTS, shared_mlp=64, dense_layers=1),
        plan({"fsdp": 2, "expert": 4}, global_batch=16, microbatches=2, remat="none"),
    ),
    "sorted experts in context": (
        model(**EXPERTS), plan({"expert": 2, "context": 2, "tensor": 2}, remat="dots"),
    ),
    "sorted experts in two dimensions": (
        model(**EXPERTS),
        plan({"fsdp": 2, "expert": 2, "tensor": 2}, rules={"act_embed": "tensor"}),
    ),
    "buffers of sorted experts": (
        model(**EXPERTS | {"experts": 8}), plan({"fsdp": 2, "expert": 4}, expert_buffer=3.0),
    ),
    "experts that pick gathered tokens": (
        model(**EXPERTS),
        plan({"fsdp": 2, "expert": 2, "tensor": 2}, expert_exchange="gather"),
    ),
    "experts sorted into slots": (
        model(**EXPERTS, shared_mlp=64, dense_layers=1),
        plan({"fsdp": 2, "expert": 2, "tensor": 2}, capacity_factor=1.0, dispatch="sort"),
    ),
    "latent attention": (
        model(SIZES | {"head_dim": 48, "kv_heads": 4}, q_rank=64, kv_rank=32, rope_dim=16,
              v_head_dim=32),
        plan(FSDP_TENSOR),
    ),
    "one projection for queries, keys and values": (
        model(WIDE | {"kv_heads": 4}, attention="flash", fused_qkv=True, rotary=False),
        plan(FSDP_TENSOR, 128),
    ),
    "slices of one projection": (
        model(SIZES | {"kv_heads": 4}, fused_qkv=True, qk_norm=True),
        plan(FSDP_TENSOR),
    ),
    "windows": (
        model(WIDE | {"layers": 5}, attention="flash", window=64, global_every=2, post_norms=True,
              qk_norm=True, tied_embeddings=True),
        plan(FSDP_TENSOR, 128),
    ),
    "layers of several shapes": (
        model(WIDE | {"layers": 7}, attention="flash", window=64, global_every=2, post_norms=True,
              qk_norm=True, tied_embeddings=True, global_head_dim=256, global_kv_heads=2,
              global_keys_as_values=True, wide_layers=2, wide_mlp=512, layer_embed=32,
              logit_cap=30.0),
        plan(FSDP_TENSOR, 128),
    ),
    "windows in context": (
        model(WIDE, attention="flash", window=96), plan({"fsdp": 2, "context": 4}, 512, 2),
    ),
    "an encoder in context": (
        model(WIDE, attention="flash", kind="encoder"), plan({"fsdp": 2, "context": 4}, 512, 2),
    ),
    "a wide window in context": (
        model(WIDE, attention="flash", kind="encoder", window=512),
        plan({"fsdp": 4, "context": 2}, 512, 4),
    ),
    "a length that no 512 divides": (
        model(WIDE, attention="flash"), plan({"fsdp": 4, "context": 2}, 768, 4),
    ),
    "parallel block": (
        model(kv_heads=1, parallel=True, activation="gelu", gated=False, kind="encoder",
              rotary=False),
        plan(FSDP_TENSOR, optimizer="adafactor"),
    ),
    "labels by index": (model(), plan({"fsdp": 2, "tensor": 4}, loss_labels="index")),
    "labels taken": (model(), plan({"fsdp": 2, "tensor": 4}, loss_labels="take")),
    "loss in tiles": (model(), plan({"fsdp": 2, "tensor": 4}, vocab_tiles=128)),
    "saved by name": (model(), plan(FSDP_TENSOR, save=["out", "mlp_in_0"])),
    "layers without a scan": (
        model(WIDE, attention="flash"),
        plan({"fsdp": 4, "tensor": 2}, 128, remat="none", scan_layers=False),
    ),
    "layers of several shapes without a scan": (
        model(WIDE | {"layers": 7}, window=64, global_every=2, post_norms=True, wide_layers=2,
              wide_mlp=512, layer_embed=32),
        plan(FSDP_TENSOR, 128, 16, microbatches=2, remat="minimal", scan_layers=False),
    ),
    "circular pipeline": (
        model(layers=8),
        plan({"stage": 4, "fsdp": 2}, global_batch=16, microbatches=8, schedule="circular"),
    ),
    "circular rounds": (
        model(layers=8, qk_norm=True, tied_embeddings=True),
        plan({"stage": 2, "fsdp": 2, "tensor": 2}, global_batch=8, microbatches=4,
             schedule="circular", virtual_stages=2),
    ),
    "circular rounds without a wait": (
        model(WIDE, layers=4, attention="flash"),
        plan({"stage": 2, "fsdp": 4}, 128, 8, microbatches=2, schedule="circular",
             virtual_stages=2, remat="minimal"),
    ),
    "circular rounds that save all": (
        model(layers=4, **EXPERTS),
        plan({"stage": 2, "fsdp": 2, "expert": 2}, global_batch=16, microbatches=4, remat="none",
             schedule="circular", virtual_stages=2, capacity_factor=1.5),
    ),
    "circular rounds of experts that pick gathered tokens": (
        model(layers=4, **EXPERTS),
        plan({"stage": 2, "fsdp": 2, "expert": 2}, expert_exchange="gather", **IN_ROUNDS),
    ),
    "orthogonal momentum": (model(), plan(FSDP_TENSOR, optimizer="muon", moment_dtype="bf16")),
    "orthogonal momentum of experts": (
        model(layers=4, **EXPERTS, shared_mlp=64, dense_layers=2),
        plan({"fsdp": 8}, optimizer="muon", capacity_factor=1.5),
    ),
    "orthogonal momentum in a pipeline": (
        model(layers=8, **EXPERTS),
        plan({"stage": 2, "fsdp": 2, "expert": 2}, optimizer="muon", capacity_factor=1.5,
             **IN_ROUNDS),
    ),
    "orthogonal momentum in a pipeline of copies": (
        model(layers=8),
        plan({"stage": 4, "data": 2}, optimizer="muon", global_batch=16, microbatches=8,
             schedule="circular"),
    ),
    "annotated": (
        model(),
        plan(FSDP_TENSOR, annotate={"layer/mlp_hidden": ["fsdp", None, "tensor"]}),
    ),
}  # fmt: skip
FAST = ("experts",)
"""The case that runs by default, with attention, layers in a scan and exchanges of rows; the others
are thorough."""


def run_both(given: Architecture, sharded: Plan, folder: Path) -> dict[str, Any]:
    """Run a step as it is sharded and whole, and return what `run_exported.py` prints."""
    whole = sharded.replace(
        mesh={"data": 1}, rules={}, annotate={}, context_exchange="gather", context_balanced=False,
        schedule="", virtual_stages=1,
    )  # fmt: skip
    files = [folder / "sharded.py", folder / "whole.py"]
    for file, one, pod in zip(files, (sharded, whole), (POD, ts.Slice("v5e", "1x1")), strict=True):
        file.write_text(ts.export_jax(given, one, pod))
    answer = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, files)], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


@pytest.mark.parametrize(
    "name",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.thorough) for name in CASES],
)
def test_it_trains_and_its_gradients_are_those_of_one_device(name: str, tmp_path: Path) -> None:
    given, sharded = CASES[name]
    found = run_both(given, sharded, tmp_path)
    assert found["weights"] == given.parameter_count
    assert found["loss_difference"] < 1e-5
    assert found["gradient_difference"] < 2e-4
    assert found["losses"][-1] < found["losses"][0] - 0.05


IN_PART = {
    "adapters": (model(), plan(FSDP_TENSOR, adapter_rank=4)),
    "adapters of microbatches, not scanned": (
        model(), plan(FSDP_TENSOR, global_batch=16, microbatches=2, adapter_rank=4,
                      scan_layers=False, trainable=["head"]),
    ),
    "adapters in a pipeline": (
        model(layers=4),
        plan(**CIRCULAR, adapter_rank=4, adapter_weights=["wq", "wi_0"]),
    ),
    "adapters of experts": (
        model(**EXPERTS), plan({"fsdp": 2, "expert": 4}, capacity_factor=1.5, adapter_rank=4),
    ),
    "adapters updated in parts by Muon": (
        model(), plan({"data": 4, "fsdp": 2}, adapter_rank=4, optimizer="muon",
                      weight_update_axes=["data"]),
    ),
    "some weights": (model(), plan(FSDP_TENSOR, trainable=["wo", "*scale"])),
}  # fmt: skip
"""Steps that train a part of their weights."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", IN_PART)
def test_a_step_trains_a_part_of_its_weights(name: str, tmp_path: Path) -> None:
    given, sharded = IN_PART[name]
    found = run_both(given, sharded, tmp_path)
    graph = planned_graph(given, sharded)
    assert found["weights"] == graph.parameter_count
    trained = {weight.rpartition("/")[2] for weight, _ in graph.gradients}
    moved = {path.rpartition("['")[2][:-2] for path in found["gradient_differences"]}
    assert moved == trained
    assert found["loss_difference"] < 1e-5
    assert found["gradient_difference"] < 2e-4
    assert found["losses"][-1] < found["losses"][0]


@pytest.mark.thorough
def test_a_recurrence_trains_and_its_gradients_are_those_of_one_device(tmp_path: Path) -> None:
    """But that of the query, which is zero: at small weights it moves all scores alike."""
    given = Gnmt(units=64, vocab=512)
    found = run_both(given, plan(FSDP_TENSOR, 16), tmp_path)
    assert found["weights"] == given.parameter_count
    apart = found["gradient_differences"]
    assert apart.pop("['decoder_0_query']") < 1
    assert max(apart.values()) < 1e-5
    assert found["losses"] == sorted(found["losses"], reverse=True)


def test_tiles_of_the_loss_are_no_inputs_of_the_step() -> None:
    source = str(export_step(*CASES["loss in tiles"], POD))
    assert "def loss(w, ids, targets):" in source
    assert "batch[" not in source


def test_a_recurrence_is_a_scan_over_steps_that_saves_sums() -> None:
    source = ts.export_jax(Gnmt(units=64, vocab=512), plan(FSDP_TENSOR, 16), POD)
    assert 'save_only_these_names("decoder_1_gates")' in source
    assert "decoder_1_h_all = shard(jnp.moveaxis(decoder_1_steps[0], 0, 1)" in source
    assert max(map(len, source.splitlines())) <= 100


@pytest.mark.parametrize("name", sample(CASES, 5))
def test_each_line_says_its_operation(name: str) -> None:
    given, sharded = CASES[name]
    step = export_step(given, sharded, POD)
    lines = step.source.splitlines()
    ast.parse(step.source)
    assert "tpusim" not in step.source.replace("Written by tpusim", "")
    assert max(map(len, lines)) <= 100
    named = {op for _, op in step.lines}
    assert {"loss", *(("logits",) if given.reads_text else ())} <= named
    if not isinstance(given, Transformer):
        return
    assert {"final_norm", "embed"} <= named
    assert any(op.endswith("/wo") and '"wo"' in lines[n - 1] for n, op in step.lines)


def test_matrices_of_stages_stay_on_their_stages() -> None:
    source = str(export_step(*CASES["orthogonal momentum in a pipeline of copies"], POD))
    assert '"wi_0": (REPEATS, STAGES, LAYERS, EMBED, MLP),' in source
    assert '"wi_0": (P(None, "stage", None, None, None),),' in source


def test_experts_are_whole_on_their_devices_while_they_are_made_orthogonal() -> None:
    source = str(export_step(*CASES["orthogonal momentum of experts"], POD))
    assert '"expert_wi_0": (LAYERS * EXPERT, EMBED, EXPERT_MLP),' in source
    assert '"expert_wi_0": (P(None, None, "fsdp"), P("fsdp")),' in source


def test_a_vocabulary_that_its_axes_do_not_divide_is_padded() -> None:
    source = ts.export_jax(model(vocab=509), plan(FSDP_TENSOR), POD)
    assert "VOCAB = 510  # 509, padded for its axes" in source


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            {"matmul_dtype": "bf16", "dtype": "f32"},
            "plan.dtypes.matmul is 'bf16', which tpusim cannot write as JAX yet; write 'f32'",
        ),
        (
            {"gather_dtype": "f32"},
            "plan.dtypes.gather is 'f32', .*; write grad_dtype = 'f32', as a",
        ),
        (
            {"dtype": "f32", "grad_dtype": "f32", "reduce_dtype": "bf16"},
            "plan.dtypes.reduce is 'bf16', .*; write 'f32'",
        ),
        (
            {"scan_layers": False, "optimizer": "muon"},
            "plan.remat.scan_layers is False, .*; write true where there are stages, and with Muon",
        ),
        (
            CIRCULAR | {"scan_layers": False},
            "plan.remat.scan_layers is False, .*; write true where there are stages",
        ),
        ({"offload_optimizer": True}, "plan.optimizer.offload is True, which tpusim cannot"),
        (
            {"expert_sort_gradient": "scatter"},
            r"plan.experts.sort_gradient is 'scatter', .*; write 'gather'",
        ),
        (
            {"expert_tiles": [512, 1024, 512]},
            r"plan.experts.tiles is \[512, 1024, 512\], .*; write \[512, 1024, 1024\], which",
        ),
        (
            PIPELINE | {"schedule": "gpipe"},
            "plan.pipeline.schedule is 'gpipe', .* write 'circular', the schedule of one program",
        ),
        (CIRCULAR | {"microbatches": 6}, "write a multiple of the stages, such as 8"),
        (
            CIRCULAR | {"vocab_tiles": 2},
            "plan.vocab_tiles is 2, .*; write 1 where there are stages",
        ),
        (
            CIRCULAR | {"accumulator_dtype": "f32"},
            "plan.dtypes.accumulator is 'f32', .* 'bf16', as",
        ),
        (
            CIRCULAR | {"virtual_stages": 2},
            "has 4 layers, and each needs one; write virtual_stages",
        ),
    ],
)
def test_a_plan_that_cannot_be_written_is_one_sentence(keys: dict[str, Any], sentence: str) -> None:
    given = {"mesh": FSDP_TENSOR, "seq_len": 64, "global_batch": 8, **keys}
    with pytest.raises(ts.TpusimError, match=sentence) as raised:
        ts.export_jax(model(layers=4), Plan(**given), POD)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("mesh", "keys", "sentence"),
    [
        (
            {"fsdp": 2, "expert": 4},
            {"expert_exchange": "ring"},
            "layer/dispatch is a sort of tokens that a ring gathers .write expert_exchange",
        ),
        (
            {"fsdp": 2, "expert": 4},
            {"expert_exchange": "gather", "capacity_factor": 1.0, "dispatch": "sort"},
            "a sort into a fixed number of slots of tokens that are gathered",
        ),
        (
            {"fsdp": 2, "expert": 4},
            {"rules": {"act_batch": ["fsdp"]}},
            "an exchange of tokens over expert that does not shard the batch",
        ),
        (
            {"stage": 2, "fsdp": 2, "expert": 2},
            IN_ROUNDS,
            "a sort of tokens within a stage of a pipeline .write expert_exchange = 'gather'",
        ),
        (
            {"stage": 2, "fsdp": 2, "expert": 2},
            IN_ROUNDS | {"capacity_factor": 1.0, "dispatch": "sort", "matmul_dtype": "int8"},
            "a sort of tokens within a stage of a pipeline .write plan.dispatch = 'one_hot'",
        ),
        ({"fsdp": 8}, {"matmul_dtype": "int8"}, "a grouped matmul in a narrow dtype .write a plan"),
        (
            {"fsdp": 8},
            {"dtype": "bf16", "reduce_dtype": "f32"},
            "whose weight is gathered or reduced in a dtype of its own .write a plan.capacity_f",
        ),
        (
            {"fsdp": 8},
            {"dtype": "bf16", "gather_dtype": "f32"},
            "whose weight is gathered or reduced in a dtype of its own .write a plan.capacity_f",
        ),
        ({"fsdp": 8}, {"seq_len": 96}, "over the 192 rows of a device, .* in blocks of 128"),
    ],
)
def test_a_sort_that_cannot_be_written_is_one_sentence(
    mesh: dict[str, int], keys: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ts.TpusimError, match=sentence) as raised:
        ts.export_jax(model(layers=4, **EXPERTS), plan(mesh, **keys), POD)
    assert "\n" not in str(raised.value)


def test_rows_of_sorted_experts_have_room_for_all_that_could_come() -> None:
    """Over 2 devices all tokens of both, as a token takes 2 of 4 experts; or what the plan says."""
    mesh = {"fsdp": 4, "expert": 2}
    source = ts.export_jax(model(**EXPERTS), plan(mesh), POD)
    assert "dispatched, sizes, moves = sort_tokens(" in source
    assert re.search(r'"expert",\s+2,\s+\)', source)
    source = ts.export_jax(model(**EXPERTS), plan(mesh, expert_buffer=1.25), POD)
    assert re.search(r'"expert",\s+1\.25,\s+\)', source)


@pytest.mark.parametrize(("remat", "saved"), [("full", False), ("dots", True), ("minimal", True)])
def test_results_of_grouped_kernels_are_saved_by_name(remat: str, saved: bool) -> None:
    """JAX's policies of dots do not know them: they get a name, and the policy has it."""
    source = ts.export_jax(model(**EXPERTS), plan(FSDP_TENSOR, remat=remat), POD)
    assert source.count('"expert_mlp_in_0"') == 2 * saved
    assert bool(re.search(r'save_only_these_names\([^)]*"expert_mlp_in_0"', source)) == saved


@pytest.mark.parametrize("attention", ["flash", "dot"])
def test_a_saved_context_has_one_name(attention: str) -> None:
    """The kernel names its residual; a second name of its result would be a second stack."""
    saving = plan(FSDP_TENSOR, 128, save=["context", "q"])
    source = ts.export_jax(model(WIDE, attention=attention), saving, POD)
    assert ('saved_as="context"' in source) is (attention == "flash")
    assert ("context = checkpoint_name(" in source) is (attention == "dot")
    assert 'save_only_these_names("context", "q")' in source


def test_a_kernel_has_the_blocks_of_the_plan_and_one_backward_kernel_on_request() -> None:
    pod, model = ts.Slice("v5e", "2x2"), ts.models.load("llama2-7b").replace(layers=2)
    keys = {"attention_block": [1024, 512], "attention_backward": "one-kernel"}
    for given, written in ((keys, True), ({}, False)):
        plan = Plan(mesh={"fsdp": 4}, seq_len=2048, global_batch=8, **given)
        source = export_step(model, plan, pod).source
        for option in ("block=(1024, 512)", "block_backward=(1024, 512)", "fused=True"):
            assert (f" {option}," in source) is written


def test_keys_that_the_kernel_cannot_take_are_one_sentence() -> None:
    with pytest.raises(ts.TpusimError, match=r"a fused kernel over 192 keys, .* blocks of 128"):
        ts.export_jax(model(WIDE, attention="flash"), plan(FSDP_TENSOR, 192), POD)


def test_a_head_count_that_its_axes_do_not_divide_is_one_sentence() -> None:
    odd = model(SIZES | {"heads": 6, "kv_heads": 6})
    with pytest.raises(ts.TpusimError, match="layer/wq has heads = 6, which tensor=4 does not div"):
        ts.export_jax(odd, plan({"fsdp": 2, "tensor": 4}), POD)
