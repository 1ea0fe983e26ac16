"""Remarks in the notes of a run: what they set, what changes nothing, what nothing reads."""

import re
from typing import Any

import pytest

from tpusim.models.model_keys import MODEL_KEYS
from tpusim.plan.plan import PLAN_KEYS
from tpusim.validation import MeasuredRun
from tpusim.validation.outcome import simulate_run
from tpusim.validation.pairs import run_pairs
from tpusim.validation.referred_notes import with_referred_notes
from tpusim.validation.remark_rules import SETTING
from tpusim.validation.remarks import remarks_of
from tpusim.validation.remarks_about import ABOUT
from tpusim.validation.run_model import model_of
from tpusim.validation.run_setup import set_up


def run(notes: str = "", **changes: object) -> MeasuredRun:
    given: dict[str, Any] = {
        "id": "a", "chip": "v5e", "topology": "4x4", "n_layers": 6, "d_model": 512, "n_heads": 4,
        "d_ff": 1024, "vocab": 1000, "seq_len": 128, "global_batch": 64, "mesh": "fsdp=16",
        "step_s": 10.0, "framework": "maxtext", "optimizer": "adamw", "attention": "flash",
        "notes": notes,
    }  # fmt: skip
    return MeasuredRun(**(given | changes))


@pytest.mark.parametrize(
    ("notes", "model", "plan"),
    [
        ("per-step log line. dropped, cf 1.25", {}, {"capacity_factor": 1.25}),
        ("Dropped, capacity factor 1.25", {}, {"capacity_factor": 1.25}),
        ("dropless (megablox+tokamax GMM), random routing", {}, {"capacity_factor": 0.0}),
        ("8 hosts, 32 accumulation steps (microbatch 1 a data group)", {}, {"microbatches": 32}),
        ("QK norm and hybrid norm; head_dim 64", {"qk_norm": True, "post_norms": True}, {}),
        ("Qwen3-style (QK norm), d_ff 4d", {"qk_norm": True}, {}),
        ("tied embedding, pre and post norms", {"tied_embeddings": True, "post_norms": True}, {}),
        ("attention and MLP of a layer in parallel on one normed input", {"parallel": True}, {}),
        ("scaled-MaxText family: relu MLP (2 matrices), MHA hd256",
         {"activation": "relu", "parallel": True}, {}),
        ("6 layers of which the first is dense with d_ff 10944, 2 shared",
         {"dense_layers": 1, "mlp": 10944, "shared_mlp": 2048}, {}),
        ("the first 3 layers dense with d_ff 18432, 1 shared of 2112",
         {"dense_layers": 3, "mlp": 18432, "shared_mlp": 2112}, {}),
        ("192 experts of 1536, 8 a token, shared expert 2560",
         {"experts": 192, "expert_mlp": 1536, "experts_per_token": 8, "shared_mlp": 2560}, {}),
        ("MLA (qk 128+64, v 128, kv_lora 512, no q_lora)",
         {"kv_rank": 512, "q_rank": 0, "rope_dim": 64}, {}),
        ("MLA (qk 128+64, v 128, kv_lora 512, q_lora 1536)",
         {"kv_rank": 512, "q_rank": 1536, "rope_dim": 64}, {}),
        ("5 local : 1 global layers (models/x.py, 2 patterns), window 1024",
         {"global_every": 6, "window": 1024}, {}),
        ("sliding window 64 on 4 layers, 128 on 2", {"window": 64, "global_every": 3}, {}),
        ("mu and grad bf16", {}, {"moment_dtype": "bf16", "grad_dtype": "bf16"}),
        ("bf16 Adam momentum and gradient, fp32 weights", {},
         {"moment_dtype": "bf16", "grad_dtype": "bf16", "param_dtype": "f32"}),
        ("fp32 optimizer state", {}, {"moment_dtype": "f32", "second_moment_dtype": "f32"}),
        ("batch 36 a device and bf16 weights from the script", {}, {"param_dtype": "bf16"}),
        ("layers not scanned", {}, {"scan_layers": False}),
        ("no scan, no offload", {}, {"scan_layers": False}),
        ("eqx.filter_checkpoint on every block", {}, {"scan_layers": False}),
        ("vocab padded to 1000; vocab tiling 4", {"vocab": 1000}, {"vocab_tiles": 4}),
        ("fsdp_shard_on_exp", {}, {"rules": {"expert": ("fsdp",)}}),
        ("ragged sort on SparseCore; hoisted weight gather, no barriers, 2 token chunks", {},
         {"expert_exchange": "gather"}),
        ("dropless, tile (512,2048,1536)", {},
         {"capacity_factor": 0.0, "expert_tiles": (512, 2048, 1536)}),
        ("tile 512; HBM near the limit", {}, {"expert_tiles": (512, 1024, 512)}),
        ("axis of 16 = the 4x4 plane", {}, {"placement": {"fsdp": ["x", "y"]}}),
    ],
)  # fmt: skip
def test_what_remarks_set(notes: str, model: dict[str, Any], plan: dict[str, Any]) -> None:
    found = remarks_of(run(notes))
    assert (dict(found.model), dict(found.plan)) == (model, plan)
    assert found.unread == (("8 hosts",) if "8 hosts" in notes else ())


def test_axes_and_dimensions_of_several_remarks_are_one_placement() -> None:
    notes = "axis of 8 = the torus dimension of 8; axis of 256 = the 16x16 plane"
    found = remarks_of(run(notes, topology="8x16x16", mesh="fsdp=256;tensor=8"))
    assert found.plan == {"placement": {"tensor": ["x"], "fsdp": ["y", "z"]}}


def test_weights_that_travel_quantised() -> None:
    notes = "quantised before the weight all-gather (shard_exp_on_fsdp, fixed weight calibration)"
    found = remarks_of(run(notes, dtype="fp8", mesh="fsdp=8;expert=2"))
    assert found.plan == {"gather_dtype": "fp8", "rules": {"expert": ("expert", "fsdp")}}


def test_only_a_fixed_calibration_lets_weights_travel_quantised() -> None:
    """MaxText's kernels gather bf16 to find a weight's largest; a fixed scale needs no search."""
    found = {
        notes: remarks_of(run(notes, dtype="fp8")).plan
        for notes in ("fp8_full qwix, fixed calibration", "fp8_full qwix, absmax calibration")
    }
    assert list(found.values()) == [{"gather_dtype": "fp8"}, {}]


@pytest.mark.parametrize(
    ("notes", "unread"),
    [
        ("dvfs_p_state=3, tile (512,2048), dropless", ("dvfs_p_state=3", "tile (512,2048)")),
        ("dvfs_p_state=7, dropless", ()),
        ("synthetic data; per-step log line. step 14; printed 412.319 TFLOP/s/device", ()),
        ('"MFU 65.4 %, sinks and caps" says the page; caps', ('"MFU 65.4 %, sinks and caps" says '
                                                             "the page", "caps")),
        ("fused QKV kernels and tile 512", ("fused QKV kernels and tile 512",)),
        ("fused attention backward and tile 512", ()),
        ("mu bf16 was slower", ("mu bf16 was slower",)),
        ("", ()),
    ],
)  # fmt: skip
def test_what_nothing_reads_is_listed(notes: str, unread: tuple[str, ...]) -> None:
    """Text in brackets and in quotes is one remark, and so are halves that are not all known."""
    assert remarks_of(run(notes)).unread == unread
    assert simulate_run(run(notes)).unread_notes == unread


def test_remarks_that_disagree_set_nothing_and_are_listed() -> None:
    found = remarks_of(run("cf 1.25; 4 layers; cf 2"))
    assert found.plan == {}
    assert found.unread == ("capacity_factor: cf 1.25 against cf 2",)


def test_a_column_stands_against_a_remark() -> None:
    found = remarks_of(run("vocab tiling 4", vocab_tiles=8))
    assert found.plan == {}
    assert found.unread == ("vocab_tiles = 4 against 8 in its column",)
    assert remarks_of(run("vocab tiling 4", vocab_tiles=4)).plan == {"vocab_tiles": 4}


def test_remarks_are_the_model_and_the_plan() -> None:
    plain, told = (
        set_up(run(notes, experts=8, experts_per_token=2))
        for notes in ("", "cf 1.25; QK norm; hybrid norm; 1 shared; 4 accumulation steps")
    )
    assert told.model == plain.model.replace(qk_norm=True, post_norms=True, shared_mlp=1024)
    assert told.plan == plain.plan.replace(capacity_factor=1.25, microbatches=4)
    assert "capacity_factor = 1.25, as the notes say" in told.notes
    assert "no token is dropped" in ", ".join(plain.notes)
    assert "no token is dropped" not in ", ".join(told.notes)


def test_latent_attention_of_a_remark() -> None:
    """The table has the two widths of a head, the notes the ranks."""
    notes = "MLA (qk 128+64, v 128, kv_lora 512, no q_lora)"
    model, _ = model_of(run(notes, head_dim="192qk/128v"))
    assert (model.head_dim, model.latent.v_head_dim, model.latent.kv_rank) == (192, 128, 512)
    assert simulate_run(run(notes, head_dim="192qk/128v")).ok
    assert not simulate_run(run("", head_dim="192qk/128v")).ok


def test_every_rule_says_why_and_sets_fields_that_exist() -> None:
    known = {*MODEL_KEYS.table, *PLAN_KEYS.table}
    assert not set(MODEL_KEYS.table) & set(PLAN_KEYS.table)
    samples = {"vocab padded to 1000", "mu bf16", "QK norm", "cf 1.25"}
    assert all(rule.why for rule in SETTING)
    for text in samples:
        found = [rule for rule in SETTING if re.fullmatch(rule.pattern, text, re.I)]
        assert len(found) == 1, text
        match = re.fullmatch(found[0].pattern, text, re.I)
        assert match
        assert set(found[0].reads(match, run())) <= known


def test_no_pattern_about_the_measurement_hides_a_remark_that_sets_something() -> None:
    about = [re.compile(one, re.I) for group in ABOUT.values() for one in group]
    for text in ("window 512", "QK norm", "1 shared", "cf 1.25", "8 a token", "tied embedding",
                 "mu bf16", "vocab tiling 4", "32 accumulation steps", "no scan"):  # fmt: skip
        assert not any(one.fullmatch(text) for one in about), text


@pytest.mark.parametrize("reference", ["as the 16-chip row", "as first but batch 9"])
def test_notes_that_refer_to_another_row(reference: str) -> None:
    first = run("QK norm; 6 layers. ", id="first", model="M", num_chips=16)
    other = run("cf 2", id="other", model="N", num_chips=16)
    second = run(f"one chip each. {reference}", id="second", model="M", num_chips=32)
    *same, told = with_referred_notes([other, first, second])
    assert same == [other, first]
    assert remarks_of(told).model == {"qk_norm": True}
    assert told.notes == f"one chip each. QK norm; 6 layers; {reference}"
    assert with_referred_notes([other, second])[1] == second


def test_pairs_whose_notes_set_other_fields_say_which() -> None:
    runs = [run("dropless", id="a"), run("cf 1.25, tokamax splash", id="b", num_slices=2)]
    (pair,) = run_pairs([simulate_run(one) for one in runs])
    assert "capacity_factor" in pair.also
