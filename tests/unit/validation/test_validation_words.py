"""A run's columns in the words of a simulation."""

from dataclasses import replace
from typing import Any

import pytest

import tpusim as ts
from tpusim.base.errors import TpusimError
from tpusim.models import load
from tpusim.simulation import simulate
from tpusim.validation import MeasuredRun
from tpusim.validation.outcome import simulate_run
from tpusim.validation.run_model import model_of
from tpusim.validation.run_setup import set_up, unsupported_features


def run(**changes: object) -> MeasuredRun:
    given: dict[str, object] = {
        "id": "a", "chip": "v5e", "topology": "4x4", "n_layers": 2, "d_model": 512, "n_heads": 4,
        "d_ff": 2048, "vocab": 1000, "seq_len": 128, "global_batch": 64, "mesh": "fsdp=16",
        "step_s": 10.0, "framework": "maxtext", "optimizer": "adamw", "attention": "flash",
    }  # fmt: skip
    return MeasuredRun(**(given | changes))  # type: ignore[arg-type]


def test_a_model_of_the_zoo_is_known_by_its_dimensions() -> None:
    model, notes = model_of(
        run(n_layers=96, d_model=12288, n_heads=96, d_ff=49152, vocab=50304, mlp_matrices=2,
            model="whatever", params_b=174.567)
    )  # fmt: skip
    gpt3 = load("gpt3-175b")
    assert (model.activation, model.attention.rotary, model.tied_embeddings) == (
        "gelu",
        False,
        True,
    )
    assert (model.name, model.parameter_count, notes) == ("whatever", gpt3.parameter_count, ())


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_are_tied_where_the_parameters_say_so(tied: bool) -> None:
    layers = 2 * (4 * 512 * 512 + 3 * 512 * 2048)
    tables = 1 if tied else 2
    model, notes = model_of(run(params_b=(layers + tables * 1000 * 512) / 1e9))
    assert model.tied_embeddings is tied
    assert notes == (
        f"embeddings taken as {'tied' if tied else 'untied'}, which is nearer to params_b",
    )


def test_another_number_of_parameters_is_noted() -> None:
    assert "params_b says 1" in model_of(run(params_b=1.0))[1][-1]


@pytest.mark.parametrize(
    ("written", "has"),
    [
        ("Gemma2-9B", {"post_norms", "window"}),
        ("gemma-2-2b", {"post_norms", "window"}),
        ("Gemma3-12B", {"post_norms", "window", "qk_norm"}),
        ("gemma_3_27b", {"post_norms", "window", "qk_norm"}),
        ("Qwen3-8B", {"qk_norm"}),
        ("gemma-2b", set()),
        ("gemma2b", set()),
        ("qwen-32b", set()),
        ("llama3.1-8b", set()),
    ],
)
def test_the_name_says_what_norms_a_layer_has(written: str, has: set[str]) -> None:
    model, notes = model_of(run(model=written, n_layers=6, params_b=0.02))
    assert {key for key in ("post_norms", "qk_norm", "window") if getattr(model, key)} == has
    assert model.activation == ("gelu" if "post_norms" in has else "silu")
    assert ("norms of queries and keys" in " ".join(notes)) == ("qk_norm" in has)


def test_deepseek_v3_is_known_by_its_dimensions() -> None:
    """The table says the width of an expert, and two widths of a head."""
    deepseek = load("deepseek-v3")
    row = run(model="DeepSeek3-671B", n_layers=61, d_model=7168, n_heads=128, n_kv_heads=128,
              d_ff=2048, head_dim="192qk/128v", vocab=129280, params_b=671, experts=256,
              experts_per_token=8)  # fmt: skip
    model, notes = model_of(row)
    assert replace(model, name=deepseek.name) == deepseek
    assert len(notes) == 1
    assert "latent attention of ranks 1536 and 512" in notes[0]


def test_gemma_3_is_known_by_its_dimensions() -> None:
    gemma = load("gemma3-12b")
    row = run(model="Gemma3-12B", n_layers=48, d_model=3840, n_heads=16, n_kv_heads=8, d_ff=15360,
              head_dim="256", vocab=262144, params_b=11.765)  # fmt: skip
    model, notes = model_of(row)
    assert replace(model, name=gemma.name) == gemma
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("written", "head_dim", "taken"),
    [
        ("dot", "128", "dot"),
        ("", "128", "flash"),
        ("flash(?)", "128", "flash"),
        ("splash if head_dim%128==0 else XLA", "64", "dot"),
        ("splash if head_dim%128==0 else XLA", "128", "flash"),
    ],
)
def test_attention(written: str, head_dim: str, taken: str) -> None:
    assert model_of(run(attention=written, head_dim=head_dim))[0].attention.kernel == taken


@pytest.mark.parametrize(
    ("columns", "remat", "save"),
    [
        ({}, "full", ()),
        ({"save": "layer_in"}, "full", ("layer_in",)),
        ({"save": "k,v", "offload": "layer_in,mlpwo"}, "full", ("k", "v")),
        ({"save": "k,v", "offload": "k"}, "full", ("v",)),
        ({"save": "dots"}, "dots", ()),
        ({"remat": "minimal"}, "minimal", ()),
        ({"save": "mlpwi"}, "full", ("mlp_in_0", "mlp_in_1")),
        ({"save": "qkv_proj,out_proj"}, "full", ("k", "out", "q", "v")),
        ({"save": "decoder_layer_input,query_proj"}, "full", ("layer_in", "q")),
        ({"remat": "minimal_except:qkv_proj"}, "full", ("mlp_in_0", "mlp_in_1", "mlp_out", "out")),
        ({"save": "mlpwi", "mlp_matrices": 2}, "full", ("mlp_in",)),
        ({"remat": "minimal_except:mlp_in"}, "full", ("k", "mlp_out", "out", "q", "v")),
    ],
)
def test_remat(columns: dict[str, object], remat: str, save: tuple[str, ...]) -> None:
    plan = set_up(run(**columns)).plan
    assert (plan.remat.policy, tuple(plan.remat.save)) == (remat, save)


@pytest.mark.parametrize(
    ("written", "offload"),
    [
        ("layer_in,mlpwo", ("layer_in", "mlp_out")),
        ("mlpwi", ("mlp_in_0", "mlp_in_1")),
        ("dots", ("k", "mlp_in_0", "mlp_in_1", "mlp_out", "out", "q", "v")),
    ],
)
def test_offload(written: str, offload: tuple[str, ...]) -> None:
    """A policy stands for the tensors that it saves; the layer's input stays where it is."""
    plan = set_up(run(offload=written)).plan
    assert (plan.remat.policy, tuple(plan.remat.offload)) == ("full", offload)


def test_minimal_except_nothing_is_minimal() -> None:
    minimal, except_none = (set_up(run(remat=r)) for r in ("minimal", "minimal_except:layer_in"))
    times = {simulate(s.model, s.plan, s.pod).step_time_s for s in (minimal, except_none)}
    assert len(times) == 1


@pytest.mark.parametrize(
    ("framework", "style"),
    [
        ("maxtext", "maxtext"),
        ("axlearn", "maxtext"),
        ("paxml", "maxtext"),
        ("jax-shard_map", "plain"),
        ("torch_xla-fsdp", "plain"),
        ("levanter", "plain"),
        ("lingvo", "plain"),
        ("", "plain"),
    ],
)
def test_framework(framework: str, style: str) -> None:
    plan = set_up(run(framework=framework, mesh="fsdp=8;tensor=2")).plan
    assert plan.compiler.style == style
    assert plan.rules == ({"act_embed": "tensor"} if framework == "lingvo" else {})


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_quantised_runs_multiply_all_three_matmuls_so(dtype: str) -> None:
    one = set_up(run(dtype=dtype, chip="v6e"))
    assert set(one.plan.dtypes.matmuls.values()) == {dtype}
    assert one.plan.dtypes.compute == "bf16"
    assert any(note.startswith(f"{dtype} taken for") for note in one.notes)
    assert not list(unsupported_features(run(dtype=dtype)))


F32 = {"param_dtype": "f32", "moment_dtype": "f32", "second_moment_dtype": "f32"}


@pytest.mark.parametrize(
    ("notes", "found"),
    [
        ("per-step log line. mu bf16; vocab tiling 4",
         {"param_dtype": "f32", "moment_dtype": "bf16", "second_moment_dtype": "f32",
          "vocab_tiles": 4}),
        ("weights bf16; collective-matmul disabled",
         {"param_dtype": "bf16", "moment_dtype": "bf16", "second_moment_dtype": "bf16",
          "collective_matmul": False}),
        ("weights bf16, mu f32",
         {"param_dtype": "bf16", "moment_dtype": "f32", "second_moment_dtype": "bf16"}),
        ("random routing; fp32 weights", F32),
        ("grad float32", {"grad_dtype": "f32"}),
        ("mu bf16 was slower. without weights bf16, it did not fit; mu bf17", {}),
        ("mu bf16; mu f32", {}),
    ],
)  # fmt: skip
def test_dtypes_that_the_notes_give(notes: str, found: dict[str, Any]) -> None:
    """A remark that stands by itself is read, and said; prose about it is not."""
    one, plain = set_up(run(notes=notes)), set_up(run())
    assert one.plan == plain.plan.replace(**found)
    said = [note for note in one.notes if note.endswith(", as the notes say")]
    assert bool(said) == bool(found)


@pytest.mark.parametrize("framework", ["maxtext", "levanter"])
def test_the_transposed_axis_shards_what_it_does_in_maxtext(framework: str) -> None:
    """The embed dimension and the MLP, but neither heads nor vocabulary (base.yml)."""
    plan = set_up(run(mesh="fsdp=2;fsdp_transpose=4;tensor=2", framework=framework)).plan
    keys = ["ici_fsdp_transpose_parallelism=4", "ici_tensor_parallelism=2"]
    assert plan.rules == ts.from_maxtext(None, keys, pod="v5e-16").plan.rules
    assert plan.rules == {
        "act_batch": ("fsdp", "fsdp_transpose"), "embed": ("fsdp", "fsdp_transpose"),
        "mlp": ("fsdp_transpose", "tensor"),
    }  # fmt: skip


def test_the_other_dimension_of_the_weights() -> None:
    """Sharding both dimensions leaves a chip as many weights as sharding one over all chips."""
    both, one = (
        simulate(s.model, s.plan, s.pod)
        for s in (set_up(run(mesh=mesh)) for mesh in ("fsdp=4;fsdp_transpose=4", "fsdp=16"))
    )
    assert both.flops.model == one.flops.model
    assert both.flops.redundant == one.flops.redundant
    assert both.memory_bytes["optimizer state"] == pytest.approx(
        one.memory_bytes["optimizer state"], rel=0.02
    )


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"head_dim": "192qk/128v"}, "a head_dim of 192qk/128v in this model"),
        ({"head_dim": "wide"}, "a head_dim of wide in this model"),
        ({"dtype": "int4"}, "int4 matmuls"),
        ({"mesh": "fsdp=8;sequence=2"}, "sequences sharded over chips (mesh axis sequence)"),
        ({"mesh": "fsdp=16;dcn_pipeline=2"}, "pipelines (mesh axis dcn_pipeline)"),
    ],
)
def test_what_is_lacking_is_said(columns: dict[str, object], reason: str) -> None:
    assert reason in ", ".join(unsupported_features(run(**columns)))
    one = simulate_run(run(**columns, mfu_half_causal_pct=40.0))
    assert (one.status, one.predicted_s, one.measured_mfu) == ("error", None, 0.4)
    assert one.reason.startswith("not simulated yet: ")


def test_experts_are_of_the_width_and_the_capacity_of_the_table() -> None:
    given = set_up(run(experts=8, experts_per_token=2, capacity_factor=1.25))
    model, plan = given.model, given.plan
    assert (model.moe.experts, model.moe.experts_per_token, model.moe.expert_mlp) == (
        8,
        2,
        model.mlp,
    )
    assert plan.experts.capacity_factor == 1.25
    dropless = set_up(run(experts=8, experts_per_token=2, mesh="fsdp=4;expert=4"))
    assert (dropless.plan.experts.capacity_factor, dropless.plan.experts.exchange) == (
        0,
        "all-to-all",
    )
    gathered = run(experts=8, experts_per_token=2, mesh="expert=16", expert_exchange="gather")
    assert set_up(replace(gathered, experts=16)).plan.experts.exchange == "gather"
    assert "no token is dropped" in ", ".join(dropless.notes)


def test_an_expert_axis_of_a_dense_run_contradicts_itself() -> None:
    assert "the model has no experts" in simulate_run(run(mesh="fsdp=8;expert=2")).reason


def test_deepseek_v3_is_known_by_its_name() -> None:
    for written in ("DeepSeek3-671B", "deepseek-v3"):
        model, notes = model_of(
            run(model=written, n_layers=6, experts=16, experts_per_token=2, d_ff=2048, params_b=40)
        )
        assert (model.moe.dense_layers, model.mlp, model.moe.shared_mlp) == (3, 18432, 2048)
        assert (model.moe.experts, model.moe.expert_mlp) == (16, 2048)
        assert "the first 3 layers have an MLP of 18432" in ", ".join(notes)


def test_saved_names_of_experts_are_those_of_maxtext() -> None:
    columns = {"experts": 8, "experts_per_token": 2, "save": "moe_mlpwi_0,moe_mlpwo"}
    assert set(set_up(run(**columns)).plan.remat.save) == {"expert_mlp_in_0", "expert_out"}


def test_axes_of_one_chip_are_no_obstacle() -> None:
    assert not list(unsupported_features(run(mesh="fsdp=16;sequence=1")))


CONTRADICTIONS = [
    ({"topology": "4x5"}, "v5e has no slice 4x5"),
    ({"chip": "v9"}, "no chip 'v9'"),
    ({"num_chips": 32}, "num_chips is 32, but v5e:4x4 has 16"),
    ({"mesh": "fsdp=8"}, "8"),
    ({"mesh": "fsdp"}, "write each axis once"),
    ({"mesh": "fsdp=4;fsdp=4"}, "write each axis once"),
    ({"mesh": "fsdp=8;rows=2"}, "plan.mesh.rows shards nothing"),
    ({"remat": "minimul"}, "did you mean 'minimal'"),
    ({"save": "querry"}, "'querry', which is no activation of a layer"),
    ({"mlp_matrices": 4}, "write 2 (plain) or 3 (gated)"),
    ({"n_kv_heads": 3}, "4 heads cannot share 3 K/V heads"),
]


@pytest.mark.parametrize(("columns", "sentence"), CONTRADICTIONS)
def test_a_run_that_contradicts_itself_is_a_row(columns: dict[str, object], sentence: str) -> None:
    one = simulate_run(run(**columns))
    assert one.status == "error"
    assert sentence in one.reason


def test_notes_say_what_is_taken_otherwise() -> None:
    taken = run(optimizer="", framework="novel", attention="")
    notes = " ".join(set_up(taken).notes)
    for words in ("taken as adam", "(novel) is lowered", "no attention"):
        assert words in notes


def test_the_loss_is_computed_in_as_many_tiles() -> None:
    assert [set_up(run(vocab_tiles=tiles)).plan.vocab_tiles for tiles in (0, 1, 4)] == [1, 1, 4]


def test_a_plan_that_does_not_fit_is_simulated() -> None:
    one = simulate_run(run(global_batch=3_200_000))
    assert (one.status, one.fits, one.fit) == ("ok", False, "does not fit")
    assert one.reason.startswith("does not fit: needs ")


@pytest.mark.parametrize(
    ("notes", "gib"),
    [
        ("synthetic data; HBM printed: arguments 44.5 GB, temp 55.9 GB, total 100.4 GB.", 93.505),
        ("tile 512; peak HBM 92.68-92.73 G", 92.68),
        ("peak HBM 92.68 G; as another but batch 9; peak HBM 93.17 G; batch 10 needs 102 G", 93.17),
        ("HBM 14 GB/chip; MFU not stated", 13.039),
        ("HBM usage 11 GB a chip", None),
        ("HBM near the 95.74 G limit", None),
        ("", None),
    ],
)
def test_the_hbm_that_a_source_prints_stands_beside_the_prediction(
    notes: str, gib: float | None
) -> None:
    one = simulate_run(run(notes=notes))
    assert one.hbm_peak_bytes
    if gib is None:
        assert (one.printed_hbm_bytes, one.hbm_error) == (None, None)
    else:
        assert one.printed_hbm_bytes == pytest.approx(gib * 2**30, rel=1e-4)
        assert one.hbm_error == pytest.approx(one.hbm_peak_bytes / gib / 2**30 - 1, rel=1e-4)


def test_hbm_of_a_chip_is_shared_by_its_devices() -> None:
    two = simulate_run(run(chip="7x", topology="2x2x1", num_chips=4, notes="HBM 14 GB/chip"))
    assert two.printed_hbm_bytes == 7e9


def test_a_defect_of_ours_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("tpusim.validation.outcome.simulate", broken)
    one = simulate_run(run())
    assert (one.status, one.predicted_s) == ("defect", None)
    assert "report it: KeyError('lost')" in one.reason
    monkeypatch.setenv("TPUSIM_DEBUG", "1")
    with pytest.raises(KeyError, match="lost"):
        simulate_run(run())


def test_contradictions_raise_for_those_who_ask() -> None:
    with pytest.raises(TpusimError):
        set_up(run(num_chips=32))
