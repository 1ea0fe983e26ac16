"""The model of a run, from its dimensions and from what the zoo knows of them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from tpusim import models
from tpusim.errors import ModelError
from tpusim.models import Transformer
from tpusim.validation.measured import Measured

NEAR = 0.01
"""Parameters that differ by more than this share from the table's are noted."""

_GEMMA: Mapping[str, Any] = {"activation": "gelu", "post_norms": True}
FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Gemma 2": (r"gemma[\W_]*2(?!\d|b)", {**_GEMMA, "window": 4096, "global_every": 2}),
    "Gemma 3": (r"gemma[\W_]*3(?!\d|n)", {**_GEMMA, "window": 1024, "global_every": 6,
                                       "qk_norm": True}),
    "DeepSeek-V3": (r"deepseek[\W_]*v?[\W_]*3", {"dense_layers": 3, "mlp": 18432,
                                                "shared_mlp": 2048, "q_rank": 1536,
                                                "kv_rank": 512, "rope_dim": 64}),
    "Qwen3": (r"qwen[\W_]*3(?![\d.])", {"qk_norm": True}),
}  # fmt: skip
"""How a family is written at the start of a model's name, and what its layers have: Gemma 2
(arXiv:2408.00118, section 2; its soft caps are left out), Gemma 3 (arXiv:2503.19786, section 2),
DeepSeek-V3 (arXiv:2412.19437, section 4.2) and Qwen3 (arXiv:2505.09388, section 2). The table names
the model and nothing more. Gemma 2B and Qwen 32B are of other families."""

Key = tuple[object, ...]


def model_of(run: Measured) -> tuple[Transformer, tuple[str, ...]]:
    """The model of the zoo with these dimensions, or one of the dimensions alone; and notes.

    The table says neither the activation nor whether the embeddings are tied. Where the zoo does
    not, the activation is SiLU for a gated MLP and else GELU, and the embeddings are tied or not
    as brings the number of parameters nearer to `params_b`.
    """
    of_family = tuple(f"{family}: {_in_words(own)}" for family, own in _families(run))
    layers = dict(pair for _, own in _families(run) for pair in own.items())
    given = _dimensioned(run, layers)
    known = _zoo().get(_key(given))
    model, notes = (known, ()) if known else _nearest_in_size(run, given)
    model = replace(model, name=given.name, attention=_attention(run, given.head_dim), **layers)
    return model, (*notes, *of_family, *_size_note(run, model))


def _families(run: Measured) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The family of a run's model, by its name, and what its layers have."""
    for family, (pattern, layers) in FAMILIES.items():
        if re.match(pattern, run.model.lower()):
            yield family, layers


def widths_of(run: Measured) -> tuple[int, int] | None:
    """The `head_dim` of queries and keys, and that of the values where it is another, else 0.

    None where the cell says neither one number nor two (`192qk/128v`), and for two in a family that
    is not known to have latent attention.
    """
    found = re.fullmatch(r"([0-9]{1,6})?(?:qk/([0-9]{1,6})v)?", run.head_dim)
    if not found or (found[2] and not any("kv_rank" in own for _, own in _families(run))):
        return None
    return int(found[1] or 0), int(found[2] or 0)


def _in_words(layers: Mapping[str, Any]) -> str:
    """What the layers of a family have."""
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


def _dimensioned(run: Measured, layers: Mapping[str, Any]) -> Transformer:
    if run.mlp_matrices not in (2, 3):
        raise ModelError(f"mlp_matrices is {run.mlp_matrices}; write 2 (plain) or 3 (gated)")
    gated = run.mlp_matrices == 3
    head_dim, v_head_dim = widths_of(run) or (0, 0)
    given: Mapping[str, Any] = {
        "kind": "decoder" if run.causal else "encoder", "rotary": run.causal,
        "layers": run.n_layers, "embed": run.d_model, "mlp": run.d_ff, "heads": run.n_heads,
        "kv_heads": run.n_kv_heads, "head_dim": head_dim, "v_head_dim": v_head_dim,
        "vocab": run.vocab, "gated": gated, "activation": "silu" if gated else "gelu",
        "experts": run.experts, "experts_per_token": run.experts_per_token,
        "expert_mlp": run.d_ff if run.experts else 0,
    }  # fmt: skip
    return Transformer(name=run.model or run.id, **{**given, **layers})


def _nearest_in_size(run: Measured, given: Transformer) -> tuple[Transformer, tuple[str, ...]]:
    """Tied or untied embeddings, whichever has the number of parameters nearer to the table's."""
    if not run.params_b:
        return given, ("params_b is not given: embeddings taken as untied",)
    tied = replace(given, tied_embeddings=True)
    model = min((given, tied), key=lambda m: abs(m.parameter_count - run.params_b * 1e9))
    word = "tied" if model.tied_embeddings else "untied"
    return model, (f"embeddings taken as {word}, which is nearer to params_b",)


def _size_note(run: Measured, model: Transformer) -> Iterator[str]:
    billions = model.parameter_count / 1e9
    if run.params_b and abs(billions / run.params_b - 1) > NEAR:
        yield f"the model has {billions:.4g} billion parameters, params_b says {run.params_b:g}"


def _attention(run: Measured, head_dim: int) -> str:
    """`dot` where the run's attention writes its scores to HBM, else the fused kernel.

    A cell may name both, as in `splash if head_dim%128==0 else XLA`.
    """
    kernel, _, otherwise = run.attention.lower().partition(" if head_dim%128==0 else ")
    used = otherwise if otherwise and head_dim % 128 else kernel
    return "dot" if used in ("dot", "dot_product", "xla") else "flash"


@cache
def _zoo() -> Mapping[Key, Transformer]:
    return {_key(model): model for model in map(models.load, models.names())}


def _key(m: Transformer) -> Key:
    """What the table says of a model."""
    experts = (m.experts, m.experts_per_token, m.experts and (m.expert_mlp or m.mlp))
    return (m.kind, m.layers, m.embed, m.mlp, m.heads, m.kv_heads, m.head_dim, m.vocab, m.gated,
            *experts)  # fmt: skip
