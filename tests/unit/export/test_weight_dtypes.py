"""Exported steps whose weights are sent or multiplied in dtypes of their own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_export import FSDP_TENSOR, POD, SIZES, model, plan

import tpusim as ts

RUN = Path(__file__).with_name("run_exported.py")
MULTIPLY = Path(__file__).with_name("run_matmuls.py")
INT8 = {"matmul_dtype": "int8"}
BF16 = {"dtype": "bf16"}
EXPERTS = {"experts": 4, "experts_per_token": 2, "expert_mlp": 64}


def said(script: Path, *files: Path) -> dict[str, Any]:
    answer = subprocess.run(
        [sys.executable, str(script), *map(str, files)], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def written(folder: Path, name: str = "step.py", **keys: Any) -> Path:
    file = folder / name
    file.write_text(ts.export_jax(model(), plan(FSDP_TENSOR, **keys), POD))
    return file


@pytest.mark.parametrize(
    "keys",
    [
        INT8,
        pytest.param(INT8 | {"gather_dtype": "int8"}, marks=pytest.mark.thorough),
        pytest.param({"matmul_dtype": "fp8"}, marks=pytest.mark.thorough),
    ],
)
def test_quantised_matmuls_are_off_by_no_more_than_the_rounding_of_their_operands(
    keys: dict[str, str], tmp_path: Path
) -> None:
    found = said(MULTIPLY, written(tmp_path, **keys))
    parts = [found[name] for name in ("product", "dx", "dw")]
    assert max(parts) < 1
    assert min(parts) > 0.01  # exact results are of another dtype


@pytest.mark.thorough
def test_gradients_leave_their_matmuls_in_the_dtype_of_their_reduction(tmp_path: Path) -> None:
    keys = BF16 | {"gather_dtype": "f32", "reduce_dtype": "f32"}
    found = said(MULTIPLY, written(tmp_path, **keys))
    assert found["dtypes"] == ["bfloat16", "bfloat16", "float32"]
    assert found["dw"] < 1  # of 1e-5 of the largest: sums in bf16 are off by 100 times as much
    assert found["dx"] > 10


@pytest.mark.thorough
@pytest.mark.parametrize("more", [{}, EXPERTS])
def test_a_quantised_step_trains_with_gradients_near_those_in_f32(
    more: dict[str, int], tmp_path: Path
) -> None:
    given = model(SIZES | more)
    keys = {"capacity_factor": 1.5} if more else {}
    sharded, whole = plan(FSDP_TENSOR, **keys, **INT8), plan({"data": 1}, **keys)
    files = [tmp_path / "sharded.py", tmp_path / "whole.py"]
    for file, one, pod in zip(files, (sharded, whole), (POD, ts.Slice("v5e", "1x1")), strict=True):
        file.write_text(ts.export_jax(given, one, pod))
    found = said(RUN, *files)
    assert found["losses"][-1] < found["losses"][0] - 0.05
    assert found["loss_difference"] < 1e-3
    # steps of 1/127 of a channel's largest, in two operands of each of the matmuls on a path
    apart = found["gradient_differences"]
    assert max(apart.values()) > 1e-3
    assert (
        max(n for name, n in apart.items() if "expert" not in name and "router" not in name) < 0.1
    )


@pytest.mark.parametrize(
    ("keys", "lines"),
    [
        (INT8, ['quantised_einsum("bse,ehd->bshd", attn_norm, w["wq"], b="fsdp", h="tensor")',
                'jnp.einsum("bse,ev->bsv", final_norm, w["head"])']),
        (INT8 | {"gather_dtype": "int8"}, ['w["wi_0"], P("fsdp", "tensor"), b="fsdp", f="tensor"']),
        (BF16 | {"reduce_dtype": "f32"}, ['lookup(w["embedding"], ids)',
                                          'weight_einsum("bse,ev->bsv", final_norm, w["head"])']),
        (BF16 | {"gather_dtype": "f32"}, ['attn_norm, w["wq"], P(None, "tensor"))',
                                          'lookup(w["embedding"], ids, P("tensor"']),
        (BF16 | {"logits_dtype": "f32"},
         ['final_norm, w["head"].astype(COMPUTE), preferred_element_type=jnp.float32']),
        (BF16 | {"loss_dtype": "f32"},
         ['jnp.einsum("bse,ev->bsv", final_norm, w["head"].astype(COMPUTE))']),
        (BF16 | {"logits_dtype": "f32", "reduce_dtype": "f32"},
         ['weight_einsum(', 'final_norm, w["head"], preferred_element_type=jnp.float32)']),
        (INT8 | {"remat": "minimal"}, ['policies.save_only_these_names(', '"mlp_in_0"']),
    ],
)  # fmt: skip
def test_each_weight_is_read_as_its_dtypes_say(keys: dict[str, str], lines: list[str]) -> None:
    source = " ".join(ts.export_jax(model(), plan(FSDP_TENSOR, **keys), POD).split())
    for line in lines:
        assert line in source
