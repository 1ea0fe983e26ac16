"""Values of documented keys: plausible ones, which mostly hold, and hostile ones, which may not."""

import json
import math
import random
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from inputs import ALL_FIELDS, SERVING_CHOICES, SERVING_FIELDS, VARIED, OrNone

from tpusim.base.value_checks import choices_of
from tpusim.models import MODEL_KEYS, Transformer
from tpusim.plan import PLAN_KEYS, Plan

MESHES: Sequence[Mapping[str, int]] = (
    {"fsdp": 4}, {"data": 2, "fsdp": 2}, {"fsdp": 2, "tensor": 2}, {"tensor": 4}, {"data": 4},
    {"expert": 4}, {"fsdp": 2, "expert": 2}, {"context": 2, "fsdp": 2}, {"stage": 2, "fsdp": 2},
    {"fsdp": 4, "dcn_data": 2}, {"fsdp": 8}, {"fsdp": 4, "tensor": 4}, {"fsdp": 3}, {},
)  # fmt: skip
SIZES = (1, 1, 2, 2, 3, 4, 4, 8, 16, 64, 100, 128, 512)

OF_SERVER: Mapping[str, Sequence[Any]] = {
    "mesh": (
        {"tensor": 4},
        {"attn_data": 4},
        {"data": 2, "tensor": 2},
        {"tensor": 2, "embed": 2},
        {},
    ),
    "prompt": (1, 100, {"uniform": [1, 50]}, {"vllm": [40, 0.5]}, {"median": 9, "mean": 20}),
    "output": (1, 8, {"inferencex": [20, 0.5]}),
    "engine": ("vllm-tpu", "sglang-jax", "jax", "sax"),
    "version": ("", "0.32.0", "0.1"),
    "page_size": (16, 64, 128),
    "memory_fraction": (0.5, 0.9, 1.0),
    "rules": ({"act_embed": "tensor"}, {"mlp": []}),
    "attention_block": ([128, 256], [16]),
    "burstiness": (0.5, 1.0, math.inf),
    "rate": (0.5, 20.0, 1e4),
    "requests": (1, 20, 60),
    "replicas": (1, 2),
    "drafted": (0, 2),
    "window": ([0, 10],),
}
"""Values of keys of a server and of its traffic."""

OF_KEY: Mapping[str, Sequence[Any]] = {
    "mesh": MESHES,
    "kind": ("decoder", "encoder"),
    "activation": ("relu", "relu2", "gelu", "silu"),
    "norm": ("rms", "layer", "layer-unshifted", "rms-unscaled", "layer-unscaled"),
    "qk_norm_heads": ("", "each", "all"),
    "attention": ("flash", "dot"),
    "softmax_dtype": ("compute", "f32"),
    "chip": ("v3", "v4", "v5e", "v5p", "v6e", "7x"),
    "topology": ("2x2", "2x2x1", "4x4", "2x4", "2x2x2", "4x4x4", "1x1", "4x4x8_twisted"),
    "clock": ("1.2 GHz", "700 MHz", "0.94 GHz"),
    "slow": (
        {"chips": [{"at": [0, 0, 0], "compute": 0.8}]},
        {"links": [{"between": [[0, 0, 0], [0, 1, 0]], "bandwidth": 0.5}]},
        {"slices": [{"slice": 0, "hbm": 0.9}]},
    ),
    "dcn_oversubscription": (1.0, 2.0, 8.0),
    "num_slices": (1, 1, 2, 4),
    "save": ([], ["q"], ["q", "k", "v"], ["mlp_in"]),
    "offload": ([], ["layer_in"], ["q", "k"]),
    "rules": (
        {}, {"act_embed": "tensor"}, {"vocab": "fsdp"}, {"embed": ["fsdp", "tensor"]},
        {"mlp": []}, {"act_seq": "tensor"}, {"heads": "data"}, {"expert": "fsdp"},
    ),
    "annotate": ({}, {"layer/mlp_hidden": ["fsdp", [], "tensor"]}, {"embedding": ["tensor", []]}),
    "placement": ({}, {"fsdp": ["x", "y"]}, "fsdp on x,y", {"fsdp": ["x"], "tensor": ["y"]}),
    "weight_update_axes": ([], ["data"], ["data", "fsdp"]),
    "without_passes": ([], ["observed"]),
    "attention_block": ([512, 512], [128, 256], [1, 1]),
    "attention_block_backward": ([], [256, 128]),
    "expert_tiles": ([512, 1024, 1024], [128, 128, 128]),
    "stage_layers": ([], [1, 1], [2, 1]),
    "context_exchange": ("gather", "ring", "all-to-all", {"context": "ring"}),
    "name": ("transformer", "mine", "llama3-8b", "gpt3-175b"),
    "axes": (["fsdp"], ["data", "fsdp"], ["fsdp", "tensor"], ["expert", "fsdp"]),
    "meshes": ([{"fsdp": 4}], [{"fsdp": 4}, {"data": 2, "tensor": 2}]),
    "placements": ("best", "all"),
    "shapes": ("all", "all+twisted", ["2x2"], ["2x2", "1x4"]),
    "logit_cap": (0.0, 30.0),
    "twisted": (False, False, True),
}  # fmt: skip
"""Values of the keys whose type does not say which there are."""

HOSTILE: Sequence[Any] = (
    -1, 0, 1, 7, 2**31, 10**9, 10**9 + 1, 2**62, 10**30, True, False,
    math.nan, math.inf, -math.inf, 1e290, 1e-290, -0.5, 0.3,
    "", " ", "x", "none", "0", "4", "=1+1", "\x1b[31m", "a\nb", "é" * 300, "a" * 300, "../..",
    "{}", "%s", "<b>", [], [[]], [0], [-1, 1e9], ["x", "x"], {}, {"x": 1}, {"x": {"y": []}},
    {"fsdp": 0}, {"fsdp": -4}, {"fsdp": 10**9}, {"\x1b": 4}, {"": 1}, {"fsdp": "4"},
)  # fmt: skip


def _words() -> dict[str, tuple[str, ...]]:
    """The words of each key whose type lists them."""
    found: dict[str, tuple[str, ...]] = {}
    for owner, keys in ((Plan, PLAN_KEYS), (Transformer, MODEL_KEYS)):
        own = (("", kind) for kind in keys.own or (owner,))
        for group, kind in (*own, *keys.groups.items()):
            for name, words in choices_of(kind).items():
                found[keys.flat_keys[group, name]] = words
    return found


WORDS = _words()


def plausible(section: str, key: str, draw: random.Random) -> Any:
    """A value that the key may well have."""
    kind = ALL_FIELDS[section][key]
    if section in SERVING_FIELDS:
        known = OF_SERVER.get(key) or SERVING_CHOICES.get((section, key))
        if known:
            return draw.choice(known)
    elif key in OF_KEY:
        return draw.choice(OF_KEY[key])
    if key in WORDS:
        return draw.choice(WORDS[key])
    if kind is bool:
        return draw.random() < 0.5
    if kind is float:
        return draw.choice((0.0, 0.001, 0.1, 0.5, 1.0, 1.25, 2.0))
    if kind in (int, OrNone):
        return draw.choice(SIZES if kind is int else (0, *SIZES))
    if key == "vary":
        return varied(draw)
    return hostile(draw)


def varied(draw: random.Random) -> dict[str, list[Any]]:
    """A table of up to two plan keys with one or two values each."""
    keys = draw.sample(list(VARIED), 2)
    return {
        key: [plausible("plan", key, draw) for _ in range(draw.randint(1, 2))]
        for key in keys[: draw.randint(0, 2)]
    }


def hostile(draw: random.Random, *others: Any) -> Any:
    """One of `HOSTILE` or of `others`, of which the caller may change parts."""
    return deepcopy(draw.choice((*others, *HOSTILE)))


def toml_value(value: Any) -> str:
    """A value as TOML writes it, tables inline."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{json.dumps(key)} = {toml_value(each)}" for key, each in value.items())
        return f"{{ {inner} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value) if isinstance(value, bool | str) else repr(value)


def toml_text(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """A file of sections."""
    lines: list[str] = []
    for name, keys in sections.items():
        lines += [f"[{name}]", *(f"{key} = {toml_value(each)}" for key, each in keys.items())]
    return "\n".join(lines) + "\n"
