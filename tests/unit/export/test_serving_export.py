"""Exported steps of a server: prompts and then decoding are the forward pass of the whole text."""

import ast
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from extent import thorough

import tpusim as ts
from tpusim.base import PlanError
from tpusim.export import export_jax, export_serving
from tpusim.export.served_arrays import ServedArrays
from tpusim.models import Transformer
from tpusim.plan import Plan, ServingPlan
from tpusim.server import StepLoad

SCRIPT = Path(__file__).with_name("run_served.py")
POD = ts.Slice("v5e", "2x4")
SIZES: dict[str, int] = {
    "layers": 2, "embed": 128, "mlp": 256, "heads": 8, "kv_heads": 2, "head_dim": 32, "vocab": 512,
}  # fmt: skip
EXPERTS = {"experts": 4, "experts_per_token": 2, "expert_mlp": 64}
SEQUENCES, PROMPT, TOTAL = 8, 13, 16
BOTH = {"data": 2, "tensor": 4}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grouped queries and int8": ({}, {"mesh": BOTH, "weight_dtype": "int8"}),
    "pages and fp8": ({"head_dim": 128}, {"mesh": BOTH, "kernel": "paged", "weight_dtype": "fp8"}),
    "divided experts": (EXPERTS, {"mesh": BOTH, "expert_parallel": True}),
    "attention of ranks": ({"window": 8}, {"mesh": {"attn_data": 2, "tensor": 4}}),
    "experts": (EXPERTS, {"mesh": {"tensor": 8}}),
    "K/V heads of each device": ({"kv_heads": 8}, {"mesh": BOTH}),
    "attention by tokens": ({}, {"mesh": {"tensor": 8}, "attention": "tokens"}),
    "two dimensions": ({}, {"mesh": {"tensor": 4, "embed": 2}}),
    "gathered weights": ({}, {"mesh": {"tensor": 4, "embed": 2}, "gather_weights": True}),
}
SHORT = 1
"""Cases that every run of the tests has."""


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
@pytest.mark.parametrize("case", [*[*CASES][:SHORT], *map(thorough, [*CASES][SHORT:])])
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
        assert max(map(len, source.splitlines())) <= 100
    made = subprocess.run(
        [sys.executable, SCRIPT, *files], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr[-3000:]
    found = json.loads(made.stdout)
    assert len(found["differences"]) == TOTAL - PROMPT + 1
    assert max(found["differences"]) < 1e-4, found
    assert found["argmax"]


def test_arrays_are_those_of_the_load() -> None:
    """5 prompts in chunks of 96 tokens after 160 cached ones, and 7 sequences that decode."""
    plan = ServingPlan(page_size=64)
    chunk, cached, count = 96, 160, 5
    pairs = count * (chunk * cached + chunk * (chunk + 1) // 2)
    load = StepLoad(0, 0, count * chunk, count * (cached + chunk), pairs)
    found = ServedArrays.of(plan, load)
    assert (found.sequences, found.tokens, found.pages) == (count, chunk, 4)
    found = ServedArrays.of(plan, StepLoad(7, 7 * 65))
    assert (found.sequences, found.tokens, found.keys) == (7, 1, 128)


def test_a_load_that_fills_its_pages_is_that_of_its_arrays() -> None:
    plan = ServingPlan(mesh={"data": 2}, page_size=64)
    for load in (StepLoad(6, 6 * 192), prompts(4, 128)):
        assert ServedArrays.of(plan, load).load(plan.ranks) == load
    arrays = ServedArrays.of(plan, prompts(2, 100))
    assert arrays.load(plan.ranks) == StepLoad(0, 0, 200, 256, 2 * sum(range(29, 129)))


DECODE = StepLoad(SEQUENCES, SEQUENCES * TOTAL)


@pytest.mark.parametrize(
    ("sizes", "keys", "load", "words"),
    [
        ({}, {}, StepLoad(8, 800, 16, 16, 136), "an exported step decodes or computes prompts"),
        ({}, {}, StepLoad(0, 0), "the load has no token"),
        ({}, {"weight_dtype": "int4"}, DECODE, "serving.weight_dtype is 'int4'"),
        ({}, {"matmul_dtype": "int8"}, DECODE, "serving.matmul_dtype is 'int8'"),
        ({}, {"kernel": "paged"}, DECODE, "heads 32 wide"),
        (
            {"experts": 4, "experts_per_token": 2}, {"weight_dtype": "int8"}, prompts(),
            "a grouped matmul with a weight in int8",
        ),
        ({"positions": 64}, {}, DECODE, "learnt positions"),
        ({}, {"attention": "tokens"}, prompts(1, 256), "1 sequences over 4 devices"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_one_sentence(
    sizes: dict[str, Any], keys: dict[str, Any], load: StepLoad, words: str
) -> None:
    model, plan = served(sizes, {"mesh": {"tensor": 4}, **keys})
    with pytest.raises(PlanError, match=words) as caught:
        export_serving(model, plan, ts.Slice("v6e", "2x2"), load)
    assert "\n" not in str(caught.value)


def test_source_is_python_without_tpusim() -> None:
    model, plan = served({}, {"mesh": BOTH, "weight_dtype": "int8"})
    source = export_serving(model, plan, POD, DECODE)
    imported = {
        alias.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import)
        for alias in node.names
    }  # fmt: skip
    assert "tpusim" not in imported
    assert "jax" in imported
    assert "kv_cache" in source
