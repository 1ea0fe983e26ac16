"""The sentences for transformers that cannot be."""

from dataclasses import fields
from numbers import Integral
from typing import TYPE_CHECKING

from tpusim.errors import ModelError
from tpusim.graph import COMPUTE
from tpusim.models.block import ACTIVATION_FLOPS

if TYPE_CHECKING:
    from tpusim.models.transformer import Transformer

_OF_EXPERTS = ("experts_per_token", "expert_mlp", "shared_mlp", "dense_layers")
_OF_LATENT = ("q_rank", "rope_dim", "v_head_dim")
_MAY_BE_ZERO = ("window", "global_every", "kv_rank", *_OF_LATENT, "experts", *_OF_EXPERTS)
_KINDS: dict[object, tuple[type, str]] = {
    int: (Integral, "a whole number"),
    str: (str, "text"),
    bool: (bool, "True or False"),
}
"""For each type of a field: what it may be, and how one says that."""
_CHOICES = {
    "kind": ("decoder", "encoder"),
    "activation": tuple(ACTIVATION_FLOPS),
    "attention": ("flash", "dot"),
    "softmax_dtype": (COMPUTE, "f32"),
}


def check_types(m: "Transformer") -> None:
    """Raise ModelError for a value that is not of its field's type."""
    for field in fields(m):
        value = getattr(m, field.name)
        kind, said = _KINDS[field.type]
        if not isinstance(value, kind) or isinstance(value, bool) != (field.type is bool):
            raise ModelError(f"{m.name}: {field.name} is {value!r}; it must be {said}")


def check_dimensions(m: "Transformer") -> None:
    """Raise ModelError for a number that is too small, a word that is none, and heads that differ.

    Heads have to share their K/V heads evenly.
    """
    for field in fields(m):
        _check(m, field.name, getattr(m, field.name))
    if m.heads % m.kv_heads:
        raise ModelError(
            f"{m.name}: {m.heads} heads cannot share {m.kv_heads} K/V heads evenly; "
            f"write a kv_heads that divides {m.heads}"
        )


def _check(m: "Transformer", key: str, value: object) -> None:
    least = 0 if key in _MAY_BE_ZERO else 1
    if isinstance(value, Integral) and not isinstance(value, bool) and value < least:
        raise ModelError(f"{m.name}: {key} is {value}; it must be at least {least}")
    if key in _CHOICES and value not in _CHOICES[key]:
        raise ModelError(f"{m.name}: {key} is {value!r}; write one of {', '.join(_CHOICES[key])}")


def check_experts(m: "Transformer") -> None:
    """Raise ModelError for experts that cannot be, and for what is said of them without any."""
    if not m.experts:
        for key, none in (*((key, 0) for key in _OF_EXPERTS), ("expert_every", 1)):
            if (value := getattr(m, key)) != none:
                raise ModelError(
                    f"{m.name}: {key} is {value}, but the model has no experts; give experts, or "
                    f"write {key} = {none}"
                )
        return
    if not 1 <= m.experts_per_token <= m.experts:
        raise ModelError(
            f"{m.name}: experts_per_token is {m.experts_per_token}; write how many of the "
            f"{m.experts} experts a token goes to, from 1 to {m.experts}"
        )
    if not any(map(m.has_experts, range(m.layers))):
        raise ModelError(
            f"{m.name}: none of the {m.layers} layers has experts, as dense_layers is "
            f"{m.dense_layers} and expert_every is {m.expert_every}; write smaller ones, or leave "
            "experts out"
        )


def check_latent(m: "Transformer") -> None:
    """Raise ModelError for latent attention that cannot be, and for what is said of it alone."""
    if fault := _latent_fault(m):
        raise ModelError(f"{m.name}: {fault}")


def _latent_fault(m: "Transformer") -> str:
    """What is wrong with the fields of latent attention, and what to write instead."""
    alone = next((key for key in _OF_LATENT if getattr(m, key)), "")
    if not m.kv_rank:
        return f"{alone} is for latent attention; give kv_rank, or leave it out" if alone else ""
    if not 0 < m.rope_dim < m.head_dim:
        return (
            f"rope_dim is {m.rope_dim}, but it is the part of head_dim ({m.head_dim}) that latent "
            f"attention rotates; write a number from 1 to {m.head_dim - 1}, or give head_dim"
        )
    if m.kv_heads != m.heads:
        return (
            f"kv_heads is {m.kv_heads}, but with latent attention (kv_rank) each of the {m.heads} "
            "heads has keys and values of its own; leave kv_heads out"
        )
    if m.qk_norm or not m.rotary:
        said = "qk_norm" if m.qk_norm else "rotary = false"
        return f"{said} does not go with latent attention (kv_rank); leave one of the two out"
    return ""
