"""Kernels of inference without a body, by their shapes."""

import pytest
from scripts import EXPERIMENTS, script

from tpusim.compiler.work.instruction_work import instruction_work
from tpusim.program import CombinedWork, MatmulWork, VectorWork, Work

read_instruction = script(EXPERIMENTS / "operations/instruction_line.py").read_instruction

TARGET = 'custom_call_target="tpu_custom_call"'
ROWS = "bf16[1024,5120]{1,0:T(16,128)(2,1)} %"
WEIGHTS = "f4e2m1fn[25600,5120]{1,0:T(64,128)(8,1)E(4)} %"
CACHE = "bf16[7007,64,4,2,128]{4,3,2,1,0:T(2,128)(2,1)}"
QUERIES = "bf16[4,1024,3,2,128]{4,3,2,1,0:T(2,128)(2,1)}"


def work(line: str) -> Work:
    module = read_instruction(line).module()
    return instruction_work(module, module.main, module.main[module.main.root]).model


@pytest.mark.parametrize("scales", ["", ", f32[10,1,25600]{2,1,0:T(1,128)} %"])
def test_quantised_weights_are_multiplied_as_they_are(scales: str) -> None:
    """Scales of blocks of 512; rows of bf16 are quantised, and each block's product is scaled."""
    line = f"%q = bf16[1024,25600]{{1,0:T(8,128)(2,1)}} custom-call({ROWS}, {WEIGHTS}{scales})"
    found = work(f"{line}, {TARGET}")
    assert isinstance(found, MatmulWork)
    assert (found.m, found.k, found.n, found.dtype) == (1024, 5120, 25600, "fp8")
    assert found.epilogue_flops == 10 * 1024 * 25600 + 3 * 1024 * 5120


def test_weights_as_wide_as_the_rows_are_not_quantised() -> None:
    weights = "bf16[25600,5120]{1,0:T(16,128)(2,1)} %"
    line = f"%q = bf16[1024,25600]{{1,0:T(8,128)(2,1)}} custom-call({ROWS}, {weights}), {TARGET}"
    assert isinstance(work(line), VectorWork)


@pytest.mark.parametrize(
    ("name", "keys"), [("RPA-bq_32-bkvp_64-p_64-.1", 4096), ("RPA-bq_32-bkvp_32-p_64", 2048)]
)
def test_ragged_attention_computes_whole_blocks_of_keys(name: str, keys: int) -> None:
    operands = f"s32[256]{{0:T(256)}} %, {QUERIES} %, {CACHE} %"
    found = work(f"%{name} = ({QUERIES}, {CACHE}) custom-call({operands}), {TARGET}")
    assert isinstance(found, CombinedWork)
    scores, sums = found.parts
    assert isinstance(scores, MatmulWork)
    assert isinstance(sums, MatmulWork)
    assert scores.batch * scores.m == 1024 * 4 * 3 * 2
    assert (scores.n, sums.k) == (keys, keys)
    assert scores.epilogue_flops == 6 * scores.batch * scores.m * keys
