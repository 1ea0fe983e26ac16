"""The configuration of a row: model, plan, slice and engine, from its columns alone."""

import math
from dataclasses import dataclass, field
from typing import Any

from serving_row import ServingRow

import tpusim as ts
from tpusim.base.divisors import divisors
from tpusim.base.errors import ModelError, PlanError
from tpusim.base.shown_value import cut
from tpusim.hardware.legality import default_shape
from tpusim.models import Transformer
from tpusim.plan import ServingPlan
from tpusim.plan.serving_plan import DATA
from tpusim.serving.engines import Engine
from tpusim.serving.engines.parallelism import Parallelism
from tpusim.serving.engines.served_models import served_model
from tpusim.serving.engines.setup import checkpoint_dtype

DIMENSIONS = {
    "n_layers": "layers",
    "d_model": "embed",
    "d_ff": "mlp",
    "n_heads": "heads",
    "n_kv_heads": "kv_heads",
    "d_head": "head_dim",
}
"""Keys of a Transformer by the columns of dimensions."""

ENGINE = {
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_model_len": "max_model_len",
    "page_size": "page_size",
}
"""Settings of an engine by the columns of whole numbers."""

UNKNOWN_VOCAB = 32000

IMAGES = "diffusion"
"""The phase of a row that makes images."""

FULLY_SHARDED = "fsdp"


@dataclass(slots=True)
class RowSetup:
    """What is simulated for a row.

    assumed: what the row does not state, in words.
    """

    row: ServingRow
    model: Any
    plan: ServingPlan
    pod: ts.Slice
    engine: Engine
    assumed: list[str] = field(default_factory=list)


def row_setup(row: ServingRow) -> RowSetup:
    """Return the configuration of a row.

    Raise a TpusimError with one sentence for one that cannot be simulated.
    """
    assumed: list[str] = []
    pod = _pod(row, assumed)
    engine = _engine(row, pod, assumed)
    model = _model(row, assumed)
    if (row.text("phase") == IMAGES) == model.reads_text:
        kind = "text" if model.reads_text else "images"
        raise PlanError(
            f"phase is {cut(row.text('phase'))!r}, but {model.name} is a model of {kind}"
        )
    latent = bool(getattr(model, "kv_rank", 0))
    keys = {**_division(row, model, pod), **_dtypes(row, assumed, cached=model.reads_text)}
    experts = ServingPlan(**keys).expert_devices
    plan = ServingPlan(**keys, **engine.followed(experts, latent=latent))
    return RowSetup(row, model, plan, pod, engine, assumed)


def _pod(row: ServingRow, assumed: list[str]) -> ts.Slice:
    chip = row.text("chip")
    shape = row.text("topology")
    if not shape:
        shape = "x".join(map(str, default_shape(ts.load_chip(chip).name, row.whole("chips", 1))))
        assumed.append(f"topology {shape}")
    return ts.Slice(chip, shape)


def _engine(row: ServingRow, pod: ts.Slice, assumed: list[str]) -> Engine:
    changes: dict[str, Any] = {
        key: row.whole(column) for column, key in ENGINE.items() if row.text(column)
    }
    for column in ("chunked_prefill", "prefix_cache"):
        if row.text(column):
            changes[column] = row.flag(column, False)
    if row.text("mem_fraction"):
        changes["memory_fraction"] = row.number("mem_fraction")
    chip = pod.chip.generation
    engine = Engine.of(row.text("engine"), row.text("engine_version"), chip, **changes)
    if not row.text("max_num_seqs") and "linear" in row.text("model_kind"):
        engine = _with_few_states(row, engine)
    if row.text("arrival") != "static" and row.text("phase") != IMAGES:
        assumed += [
            f"{key} {getattr(engine, key)}"
            for key in (*ENGINE.values(), "memory_fraction", "chunked_prefill", "prefix_cache")
            if key not in changes and getattr(engine, key) != 0
        ]
    return engine


def _with_few_states(row: ServingRow, engine: Engine) -> Engine:
    """Return an engine that runs up to twice as many sequences as there are users.

    Each sequence that may run has a state of its layers with linear attention, and states of the
    engine's default would not fit. Runs that state a limit have twice the users of a rank.
    """
    users = row.whole("concurrency")
    ranks = row.whole("dp_attn", 1) if engine.seqs_per_rank else 1
    return engine.changed(max_num_seqs=-(-2 * users // ranks)) if users else engine


def _model(row: ServingRow, assumed: list[str]) -> Any:
    stated = {key: row.whole(col) for col, key in DIMENSIONS.items() if row.text(col)}
    try:
        model = served_model(row.text("hf_id", row.text("model")))
    except ModelError:
        if not {"layers", "embed", "mlp", "heads"} <= stated.keys():
            raise
        assumed.append(f"vocab {UNKNOWN_VOCAB}")
        return Transformer(name=row.text("model"), vocab=UNKNOWN_VOCAB, **stated)
    differing = {key: value for key, value in stated.items() if getattr(model, key) != value}
    if differing:
        return served_model(row.text("hf_id", row.text("model")), **differing)
    return model


def _division(row: ServingRow, model: Any, pod: ts.Slice) -> dict[str, Any]:
    """Return the mesh and what is divided over it."""
    devices = row.whole("devices", pod.devices)
    if devices != pod.devices:
        raise PlanError(f"devices is {devices}, but {pod} has {pod.devices}")
    layout = row.text("ffn_layout")
    if not model.reads_text:
        return _division_of_images(row, model, devices)
    attention = "tokens" if row.text("attn_layout") == "batch" else "heads"
    if layout == "weight_stationary_2d":
        return {"mesh": _two_dimensions(devices, model), "attention": attention}
    if layout.startswith("weight_gathered"):
        mesh = _two_dimensions(devices, model)
        return {"mesh": mesh, "attention": attention, "gather_weights": True}
    if layout not in ("", "weight_stationary_1d", "replicated", FULLY_SHARDED):
        raise PlanError(f"ffn_layout is {cut(layout)!r}, which is not known")
    parallel = Parallelism.of_devices(
        devices,
        tensor=row.whole("tp"),
        attention_data=row.whole("dp_attn", 1),
        ep=row.whole("ep", 1),
    )
    return {**parallel.plan_keys(), "attention": attention}


def _division_of_images(row: ServingRow, model: Any, devices: int) -> dict[str, Any]:
    """Return the mesh of a model of images: their data parallelism, with whole or divided weights.

    Divided ones are gathered before each matmul (`ffn_layout` fsdp).
    """
    if row.whole("tp", 1) > 1:
        raise PlanError("tp is for models of text; leave it out, as devices divide the images")
    keys: dict[str, Any] = {"mesh": {DATA: devices}}
    if row.text("ffn_layout") == FULLY_SHARDED:
        if not hasattr(model, "embed"):
            raise PlanError(f"ffn_layout is fsdp, but {model.name} has no dimension embed")
        keys["rules"] = {"embed": DATA}
    return keys


def _two_dimensions(devices: int, model: Any) -> dict[str, int]:
    """Return the mesh of the least traffic between chips: arXiv:2211.05102, section 3.2.2.

    With X chips along the width E of the residual stream and n / X along the width F of the MLP,
    a layer moves tokens of E / X + F X / n elements; of two alike, the smaller X.
    """
    wide = min(divisors(devices), key=lambda x: (model.embed / x + model.mlp * x / devices, x))
    return {"embed": wide, "tensor": devices // wide}


def _dtypes(row: ServingRow, assumed: list[str], *, cached: bool) -> dict[str, Any]:
    weights = row.text("w_dtype")
    if not weights:
        weights = checkpoint_dtype(row.text("hf_id", row.text("model")))
        assumed.append(f"weights {weights}")
    cache = row.text("kv_dtype")
    if not cache:
        cache = "bf16"
        assumed += [f"cache {cache}"] if cached else []
    matmul = row.text("act_dtype", "bf16")
    return {
        "weight_dtype": weights,
        "kv_dtype": cache,
        "matmul_dtype": "" if matmul == "bf16" else matmul,
    }


def pairs_of_prompt(tokens: int) -> int:
    """Return the pairs of a token and a key that it sees, of one prompt."""
    return math.comb(tokens + 1, 2)
