"""Exported steps of a server: prompts and then decoding are the forward pass of the whole text."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import tpusim as ts
from tpusim.export import export_jax, export_serving
from tpusim.models import Transformer
from tpusim.plan import Plan, ServingPlan
from tpusim.server import StepLoad

SCRIPT = Path(__file__).with_name("run_served.py")
POD = ts.Slice("v5e", "2x4")
SIZES: dict[str, int] = {
    "layers": 2, "embed": 128, "mlp": 256, "heads": 8, "kv_heads": 2, "head_dim": 32, "vocab": 512,
}  # fmt: skip
SEQUENCES, PROMPT, TOTAL = 8, 16, 19
BOTH = {"data": 2, "tensor": 4}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "over tensor": ({}, {"mesh": {"tensor": 8}}),
    "grouped queries and int8": ({}, {"mesh": BOTH, "weight_dtype": "int8"}),
    "fp8": ({}, {"mesh": BOTH, "weight_dtype": "fp8"}),
    "K/V heads of each device": ({"kv_heads": 8}, {"mesh": {"tensor": 4, "data": 2}}),
    "pages": ({"head_dim": 128}, {"mesh": BOTH, "kernel": "paged"}),
    "attention of ranks": ({}, {"mesh": {"attn_data": 2, "tensor": 4}}),
    "attention by tokens": ({}, {"mesh": {"tensor": 8}, "attention": "tokens"}),
    "two dimensions": ({}, {"mesh": {"tensor": 4, "embed": 2}}),
    "gathered weights": ({}, {"mesh": {"tensor": 4, "embed": 2}, "gather_weights": True}),
    "windows": ({"window": 8}, {"mesh": BOTH}),
}  # fmt: skip


def served(sizes: dict[str, Any], keys: dict[str, Any]) -> tuple[Transformer, ServingPlan]:
    model = Transformer(**{**SIZES, **sizes})
    return model, ServingPlan(**{"kernel": "dot", "page_size": 32, **keys})


def prompts(sequences: int = SEQUENCES, tokens: int = PROMPT) -> StepLoad:
    pairs = sequences * tokens * (tokens + 1) // 2
    return StepLoad(0, 0, sequences * tokens, sequences * tokens, pairs)


def whole(model: Transformer) -> str:
    plan = Plan(
        mesh={"data": 1}, seq_len=TOTAL, global_batch=SEQUENCES, dtype="f32", grad_dtype="f32",
        param_dtype="f32",
    )  # fmt: skip
    return export_jax(model.replace(attention="dot"), plan, ts.Slice("v5e", "1x1"))


@pytest.mark.skipif(find_spec("optax") is None, reason="needs pip install 'tpusim[xla]'")
@pytest.mark.parametrize("case", CASES)
def test_prompts_and_decoding_are_the_forward_pass_of_the_whole_text(
    case: str, tmp_path: Path
) -> None:
    model, plan = served(*CASES[case])
    decode = StepLoad(SEQUENCES, SEQUENCES * TOTAL)
    sources = (
        export_serving(model, plan, POD, prompts()),
        export_serving(model, plan, POD, decode),
        whole(model),
    )
    files = []
    for name, source in zip(("prompts", "decode", "whole"), sources, strict=True):
        files.append(tmp_path / f"{name}.py")
        files[-1].write_text(source, "utf-8")
        assert max(map(len, source.splitlines())) < 100
    made = subprocess.run(
        [sys.executable, SCRIPT, *files], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr[-3000:]
    found = json.loads(made.stdout)
    assert len(found["differences"]) == TOTAL - PROMPT + 1
    assert max(found["differences"]) < 1e-4, found
    assert found["argmax"]
