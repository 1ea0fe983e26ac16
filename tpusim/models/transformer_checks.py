"""Checks of a transformer's keys against each other."""

from typing import Any

from tpusim.base.errors import ModelError
from tpusim.models.model_keys import MODEL_KEYS


def check_transformer(model: Any) -> None:
    """Raise ModelError for keys that contradict each other.

    model: a `Transformer`.
    """
    for key in ("kv_heads", "global_kv_heads"):
        shared = model.flat()[key]
        if shared and model.heads % shared:
            raise ModelError(
                f"{model.heads} heads cannot share {shared} K/V heads evenly; "
                f"write a {key} that divides {model.heads}"
            )
    _check_latent(model)
    try:
        model.latent.check(model.heads, model.kv_heads, model.head_dim, model.attention)
        model.norms.check(parallel=model.parallel, post_norms=model.post_norms)
        model.biases.check(model.latent.kv_rank)
    except ModelError as error:
        raise ModelError(MODEL_KEYS.with_flat_keys(str(error))) from error
    if model.dropout >= 1:
        raise ModelError(
            f"dropout is {model.dropout:g}, which leaves no element; write a share below 1, "
            "such as 0.1"
        )
    _check_fused(model)
    _check_linear(model)
    _check_ends(model)
    model.moe.check_layers(model.layers)
    _check_wide(model)


def _check_latent(model: Any) -> None:
    """Raise ModelError for heads and gates that latent attention does not have."""
    if not model.latent.kv_rank:
        return
    if any(model.attention.of_global_layers):
        raise ModelError(
            "with latent attention (kv_rank) all layers have the same heads; leave "
            "global_head_dim, global_kv_heads and global_keys_as_values out"
        )
    if model.attention.out_gate:
        raise ModelError(
            "out_gate is true, but latent attention (kv_rank) has no gate on its result; leave "
            "one out"
        )


def _check_fused(model: Any) -> None:
    """Raise ModelError if one matrix cannot make queries, keys and values of all layers."""
    own = model.attention
    if model.wide_values and (own.fused_qkv or own.global_keys_as_values):
        key = "fused_qkv" if own.fused_qkv else "global_keys_as_values"
        raise ModelError(
            f"{key} makes values as wide as keys, {model.head_dim}, but v_head_dim is "
            f"{model.latent.v_head_dim}; leave one out"
        )
    if own.fused_qkv and model.latent.kv_rank:
        raise ModelError(
            f"fused_qkv makes keys and values of the tokens, but with kv_rank = "
            f"{model.latent.kv_rank} they are made of latents; write fused_qkv = false"
        )


def _check_linear(model: Any) -> None:
    """Raise ModelError for linear attention of an encoder, or with keys that it cannot share."""
    own = model.attention
    if not own.linear:
        return
    if not model.causal:
        raise ModelError(
            f'linear is "{own.linear}", whose tokens see those before, but kind is '
            f'"{model.kind}"; write kind = "decoder", or leave linear out'
        )
    heads = own.linear_heads or model.heads
    if own.linear_key_heads and heads % own.linear_key_heads:
        raise ModelError(
            f"{heads} heads of linear attention cannot share {own.linear_key_heads} heads of "
            f"queries and keys evenly; write a linear_key_heads that divides {heads}"
        )


def _check_ends(model: Any) -> None:
    """Raise ModelError for ends that see all keys, but that patterns of layers have inside."""
    ends, dense = model.attention.global_ends, model.moe.dense_layers
    if ends in ("first", "both") and dense != 1:
        raise ModelError(
            f"global_ends is {ends!r}, but a first layer of its own is the only dense one, and "
            f"dense_layers is {dense}; write dense_layers = 1, or another global_ends"
        )
    start = model.layers - model.wide_layers if model.wide_layers else dense
    if ends in ("last", "both") and (model.layers - start) % model.period == 0:
        raise ModelError(
            f"global_ends is {ends!r}, but the last of {model.layers} layers fills a pattern of "
            f"{model.period}, so it is like others; leave global_ends out"
        )


def _check_wide(model: Any) -> None:
    """Raise ModelError for wide layers without a width, and for more than there are."""
    if bool(model.wide_layers) != bool(model.wide_mlp):
        raise ModelError(
            f"wide_layers is {model.wide_layers} and wide_mlp {model.wide_mlp}; write both, or "
            "neither"
        )
    if model.wide_layers and model.moe.experts:
        raise ModelError(
            f"wide_layers is {model.wide_layers}, but layers of experts have no wide MLP; write "
            "wide_layers = 0 and wide_mlp = 0"
        )
    if model.wide_layers > model.layers:
        raise ModelError(
            f"wide_layers is {model.wide_layers}, but the model has {model.layers} layers; write "
            f"{model.layers} or less"
        )
