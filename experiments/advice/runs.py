"""The runs on which advice is compared with an exhaustive search."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tpusim as ts


class Run(NamedTuple):
    """A run as its user wrote it.

    model: the name of a published model.
    pod: the name of a slice.
    keys: of the plan.
    """

    model: str
    pod: str
    keys: Mapping[str, Any]

    def simulated(self) -> ts.PlanResult:
        """Return the result of the run."""
        return ts.simulate(self.model, ts.Plan(**self.keys), self.pod)


RUNS: Mapping[str, Run] = {
    # five runs that users found slow
    "128k tokens, context parallelism": Run(
        "llama3.1-8b",
        "v5p:4x4x8",
        {"mesh": {"fsdp": 8, "context": 16}, "seq_len": 131072, "global_batch": 16},
    ),
    "13B on v5e-256": Run(
        "llama2-13b", "v5e-256", {"mesh": {"fsdp": 256}, "seq_len": 4096, "global_batch": 512}
    ),
    "Qwen3-30B-A3B on v5p-128": Run(
        "qwen3-30b-a3b", "v5p-128", {"mesh": {"fsdp": 64}, "seq_len": 4096, "global_batch": 512}
    ),
    "pipeline over four slices": Run(
        "llama3.1-70b",
        "v5p:4x4x4 x 4",
        {
            "mesh": {"dcn_stage": 4, "fsdp": 64},
            "seq_len": 4096,
            "global_batch": 1024,
            "microbatches": 16,
        },
    ),
    "DeepSeek-V3 on 7x, does not fit": Run(
        "deepseek-v3",
        "7x:4x8x8",
        {"mesh": {"fsdp": 64, "expert": 8}, "seq_len": 4096, "global_batch": 2048},
    ),
    # twelve others: chips, sizes, architectures, meshes
    "480B encoder on 2048 chips of v4": Run(
        "bert-480b",
        "v4:8x16x16",
        {
            "mesh": {"fsdp": 256, "tensor": 8},
            "rules": {"act_embed": "tensor"},
            "seq_len": 512,
            "global_batch": 4096,
            "optimizer": "adafactor",
        },
    ),
    "8B on v5e-64": Run(
        "llama3.1-8b", "v5e-64", {"mesh": {"fsdp": 64}, "seq_len": 8192, "global_batch": 64}
    ),
    "8B on v6e-16": Run(
        "llama3.1-8b", "v6e-16", {"mesh": {"fsdp": 16}, "seq_len": 8192, "global_batch": 32}
    ),
    "70B on v5p-256": Run(
        "llama3.1-70b", "v5p-256", {"mesh": {"fsdp": 128}, "seq_len": 8192, "global_batch": 256}
    ),
    "70B on 7x-64": Run(
        "llama3.1-70b", "7x:4x4x4", {"mesh": {"fsdp": 128}, "seq_len": 8192, "global_batch": 256}
    ),
    "Gemma 2 9B on v6e-64": Run(
        "gemma2-9b", "v6e-64", {"mesh": {"fsdp": 64}, "seq_len": 8192, "global_batch": 128}
    ),
    "Mixtral 8x7B on v5p-64": Run(
        "mixtral-8x7b", "v5p-64", {"mesh": {"fsdp": 32}, "seq_len": 4096, "global_batch": 128}
    ),
    "DeepSeek-V2 Lite on v4-64": Run(
        "deepseek-v2-lite",
        "v4:2x4x4",
        {"mesh": {"fsdp": 8, "expert": 4}, "seq_len": 4096, "global_batch": 128},
    ),
    "T5 3B on v4-32": Run(
        "t5-3b", "v4:2x2x4", {"mesh": {"fsdp": 16}, "seq_len": 512, "global_batch": 512}
    ),
    "ViT-g/14 on v5e-16": Run("vit-g/14", "v5e:4x4", {"mesh": {"fsdp": 16}, "global_batch": 512}),
    "GPT-3 as a pipeline on v4-512": Run(
        "gpt3-175b",
        "v4:4x8x8",
        {
            "mesh": {"stage": 8, "fsdp": 8, "tensor": 4},
            "seq_len": 2048,
            "global_batch": 512,
            "microbatches": 16,
        },
    ),
    "32B on two slices of v6e-256": Run(
        "qwen3-32b",
        "v6e:16x16 x 2",
        {"mesh": {"dcn_data": 2, "fsdp": 256}, "seq_len": 4096, "global_batch": 1024},
    ),
}
"""Runs by name; those without a note fit as they are."""
