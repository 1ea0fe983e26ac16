"""The model of a measured run: its dimensions, and what the zoo or its family adds to them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from tpusim import models
from tpusim.base.errors import ModelError
from tpusim.models import Transformer
from tpusim.validation.frameworks import layers_of
from tpusim.validation.measured_runs import MeasuredRun
from tpusim.validation.remarks import remarks_of

PARAMS_TOLERANCE = 0.01
"""A relative difference from `params_b` above this is noted."""

_GEMMA: Mapping[str, Any] = {"activation": "gelu", "post_norms": True}
NAMED_FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Gemma 2": (r"gemma[\W_]*2(?!\d|b)", {**_GEMMA, "window": 4096, "global_every": 2,
                                       "logit_cap": 30.0}),
    "Gemma 3": (r"gemma[\W_]*3(?!\d|n)", {**_GEMMA, "window": 1024, "global_every": 6,
                                       "qk_norm": True}),
    "Gemma 4": (r"gemma[\W_]*4(?!\d|b)", {**_GEMMA, "qk_norm": True}),
    "DeepSeek-V3": (r"deepseek[\W_]*v?[\W_]*3", {"dense_layers": 3, "mlp": 18432,
                                                "shared_mlp": 2048, "q_rank": 1536,
                                                "kv_rank": 512, "rope_dim": 64}),
    "Qwen3": (r"qwen[\W_]*3(?![\d.])", {"qk_norm": True}),
}  # fmt: skip
"""Family -> a pattern for the start of a model's name, and the structure of its layers.

Gemma 2 (arXiv:2408.00118, section 2; without the soft cap of its scores), Gemma 3
(arXiv:2503.19786, section 2), Gemma 4 (huggingface/transformers, models/gemma4; remarks say in what
else its sizes differ), DeepSeek-V3 (arXiv:2412.19437, section 4.2) and Qwen3 (arXiv:2505.09388,
section 2). The table gives the model's name only. Gemma 2B and Qwen 32B belong to other
families."""

DimensionKey = tuple[object, ...]


def model_of(run: MeasuredRun) -> tuple[Transformer, tuple[str, ...]]:
    """Return the zoo's model with these dimensions, or one made of the dimensions; and notes.

    No column gives the activation function or tied embeddings. Unless a remark or the zoo knows,
    the activation is SiLU for a gated MLP and GELU otherwise, and embeddings are tied if that
    brings the number of parameters nearer to `params_b`.
    """
    families = list(_named_families(run))
    family_notes = tuple(f"{family}: {_describe(layers)}" for family, layers in families)
    layers = {key: value for _, layers in families for key, value in layers.items()}
    layers = {**layers, **layers_of(run), **remarks_of(run).model}
    given = _transformer_of(run, layers)
    known = _zoo_by_dimensions().get(_dimension_key(given))
    told = "tied_embeddings" in layers
    model, notes = (known or given, ()) if known or told else _nearest_in_size(run, given)
    attention = _attention_kind(run, given.head_dim)
    model = model.replace(name=given.name, attention=attention, **layers)
    return model, (*notes, *family_notes, *_own_notes(run, model), *_size_note(run, model))


def _own_notes(run: MeasuredRun, model: Transformer) -> Iterator[str]:
    """Yield a note if the framework's own model has other layers than the same model elsewhere."""
    if model.attention.fused_qkv and "fused_qkv" not in remarks_of(run).model:
        yield f"one matrix makes queries, keys and values, as in {run.framework}'s own model"
    if model.dropout:
        yield f"dropout of {model.dropout:g}, as in the model that {run.framework} took"


def head_dims_of(run: MeasuredRun) -> tuple[int, int] | None:
    """Return the `head_dim` of queries and keys, and that of values if it differs, else 0.

    None if the cell is neither one number nor a pair (`192qk/128v`), and for a pair in a model
    that neither its family nor a remark gives latent attention.
    """
    found = re.fullmatch(r"([0-9]{1,6})?(?:qk/([0-9]{1,6})v)?", run.head_dim)
    if not found:
        return None
    known = (remarks_of(run).model, *(layers for _, layers in _named_families(run)))
    if found[2] and not any("kv_rank" in layers for layers in known):
        return None
    return int(found[1] or 0), int(found[2] or 0)


def _named_families(run: MeasuredRun) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the family that the model's name begins with, and the structure of its layers."""
    for family, (pattern, layers) in NAMED_FAMILIES.items():
        if re.match(pattern, run.model.lower()):
            yield family, layers


def _describe(layers: Mapping[str, Any]) -> str:
    """Return the structure of a family's layers in words."""
    words = []
    if "window" in layers:
        words.append(
            f"local layers see {layers['window']} keys, each {layers['global_every']}th layer all"
        )
    if "post_norms" in layers:
        words.append("norms after attention and MLP too")
    if "dense_layers" in layers:
        words.append(
            f"the first {layers['dense_layers']} layers have an MLP of {layers['mlp']}, the others "
            f"one of {layers['shared_mlp']} for all tokens beside the experts"
        )
    if "kv_rank" in layers:
        words.append(f"latent attention of ranks {layers['q_rank']} and {layers['kv_rank']}")
    if "qk_norm" in layers:
        words.append("norms of queries and keys")
    return "; ".join(words)


def _transformer_of(run: MeasuredRun, layers: Mapping[str, Any]) -> Transformer:
    if run.mlp_matrices not in (2, 3):
        raise ModelError(f"mlp_matrices is {run.mlp_matrices}; write 2 (plain) or 3 (gated)")
    gated = run.mlp_matrices == 3
    head_dim, v_head_dim = head_dims_of(run) or (0, 0)
    given: Mapping[str, Any] = {
        "kind": "decoder" if run.causal else "encoder",
        "rotary": run.causal,
        "layers": run.n_layers,
        "embed": run.d_model,
        "mlp": run.d_ff,
        "heads": run.n_heads,
        "kv_heads": run.n_kv_heads,
        "head_dim": head_dim,
        "v_head_dim": v_head_dim,
        "vocab": run.vocab,
        "gated": gated,
        "activation": "silu" if gated else "gelu",
        "experts": run.experts,
        "experts_per_token": run.experts_per_token,
        "expert_mlp": run.d_ff if run.experts else 0,
    }
    return Transformer(name=run.model or run.id, **{**given, **layers})


def _nearest_in_size(run: MeasuredRun, given: Transformer) -> tuple[Transformer, tuple[str, ...]]:
    """Return the model with tied or untied embeddings, whichever is nearer to `params_b`."""
    if not run.params_b:
        return given, ("params_b is not given: embeddings taken as untied",)
    tied = replace(given, tied_embeddings=True)
    model = min((given, tied), key=lambda m: abs(m.parameter_count - run.params_b * 1e9))
    word = "tied" if model.tied_embeddings else "untied"
    return model, (f"embeddings taken as {word}, which is nearer to params_b",)


def _size_note(run: MeasuredRun, model: Transformer) -> Iterator[str]:
    billions = model.parameter_count / 1e9
    if run.params_b and abs(billions / run.params_b - 1) > PARAMS_TOLERANCE:
        yield f"the model has {billions:.4g} billion parameters, params_b says {run.params_b:g}"


def _attention_kind(run: MeasuredRun, head_dim: int) -> str:
    """Return `dot` if the run's attention writes its scores to HBM, else `flash`.

    A cell may name both, as in `splash if head_dim%128==0 else XLA`, and may doubt it: `dot(?)`.
    """
    kernel, _, otherwise = run.attention.lower().partition(" if head_dim%128==0 else ")
    used = otherwise if otherwise and head_dim % 128 else kernel
    return "dot" if used.removesuffix("(?)") in ("dot", "dot_product", "xla") else "flash"


@cache
def _zoo_by_dimensions() -> Mapping[DimensionKey, Transformer]:
    return {_dimension_key(model): model for model in map(models.load, models.names(Transformer))}


def _dimension_key(m: Transformer) -> DimensionKey:
    """Return the dimensions of a model that the table gives."""
    moe = m.moe
    experts = (moe.experts, moe.experts_per_token, moe.experts and (moe.expert_mlp or m.mlp))
    sizes = (m.layers, m.embed, m.mlp, m.heads, m.kv_heads, m.head_dim, m.vocab)
    return (m.kind, *sizes, m.gated, *experts)
