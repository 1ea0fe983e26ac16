"""The keys of the sections of a server, and the types that name the forms of values."""

from collections.abc import Mapping, Sequence
from typing import Any, NewType, get_args

from tpusim.base.value_checks import choices_of
from tpusim.plan import Rule, ServingPlan
from tpusim.server.policy import Priority
from tpusim.server.replica_pool import ROUTERS

OrNone = NewType("OrNone", int)
"""A count that may be 0, as it is where it is not written: no window, no latent, no experts."""

TokenLengths = NewType("TokenLengths", Mapping[str, Any])
"""Tokens, or the table of a distribution of them."""

Seconds = NewType("Seconds", Sequence[float])
"""A start and an end."""

LENGTH_ADVICE = (
    "tokens, such as 1024, or a distribution: { uniform = [512, 2048] }, { vllm = [1024, 0.5] }, "
    "{ inferencex = [1024, 0.8] } or { median = 600, p99 = 4000 }"
)

SERVING_SECTIONS: Mapping[str, str] = {
    "serving": 'a section [serving] with mesh = { tensor = 4 } and engine = "vllm-tpu"',
    "traffic": "a section [traffic] with rate, requests, prompt and output",
    "failures": "a section [failures] with cold_start_s = 40",
}

_DRAWN = ("requests", "seed", "prompt", "output", "pairs")
KINDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "poisson": (("rate",), ("burstiness", *_DRAWN)),
    "burst": ((), _DRAWN),
    "closed_loop": (("users",), _DRAWN),
    "trace": (("path",), ("requests", "window", "rate_scale")),
}
"""For each kind of traffic the keys that it needs, and others that it takes."""

SERVING_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "serving": {
        "mesh": Mapping[str, int],
        "rules": Mapping[str, Rule],
        "expert_parallel": bool,
        "moe_backend": str,
        "kernel": str,
        "attention": str,
        "gather_weights": bool,
        "weight_dtype": str,
        "matmul_dtype": str,
        "kv_dtype": str,
        "page_size": int,
        "memory_fraction": float,
        "page_s": float,
        "expert_s": float,
        "on_chip": bool,
        "attention_block": Sequence[int],
        "placement": Mapping[str, Sequence[str]] | None,
        "replicas": int,
        "router": str,
        "drafted": OrNone,
        "accepted": float,
        "ready_s": float,
        "engine": str,
        "version": str,
        "max_num_seqs": int,
        "max_num_batched_tokens": int,
        "max_model_len": OrNone,
        "chunked_prefill": bool,
        "mixed": bool,
        "priority": str,
        "prefix_cache": bool,
        "host_s": float,
        "schedule_s": float,
        "sequence_s": float,
        "request_s": float,
        "hold_s": float,
    },
    "traffic": {
        "kind": str,
        "rate": float,
        "burstiness": float,
        "users": int,
        "requests": int,
        "prompt": TokenLengths,
        "output": TokenLengths,
        "pairs": str,
        "seed": OrNone,
        "path": str,
        "window": Seconds,
        "rate_scale": float,
    },
    "failures": {
        "cold_start_s": float,
        "at_s": float,
        "mtbf_s": float,
        "spares": OrNone,
        "ttft_s": float,
        "tpot_s": float,
        "share": float,
    },
}
"""The keys of each section, and their types."""

SERVING_CHOICES: Mapping[tuple[str, str], Sequence[str]] = {
    **{("serving", key): words for key, words in choices_of(ServingPlan).items()},
    ("serving", "priority"): get_args(Priority),
    ("serving", "router"): ROUTERS,
    ("traffic", "kind"): tuple(KINDS),
}
"""The words of the keys that have a choice."""
