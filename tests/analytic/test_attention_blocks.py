"""The cost of attention kernels against calls that were measured on v6e, by shapes of blocks."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tpusim.costs import attention_seconds
from tpusim.costs.compute import hbm_seconds
from tpusim.hardware import load_chip
from tpusim.program import TOKAMAX, AttentionWork

FACTS = Path(__file__).with_name("attention_blocks.csv")
V6E = load_chip("v6e").device


def calls() -> list[dict[str, str]]:
    lines = FACTS.read_text("utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def predicted_us(call: dict[str, str]) -> float:
    """Forward, with its backward pass if there is one; queries may be copied before."""
    batch, seq = int(call["batch"]), int(call["seq_len"])
    tensor = 2 * batch * 32 * seq * 128
    block = int(call["block_q"]), int(call["block_kv"])
    forward = AttentionWork(
        batch, 32, seq, seq, 128, "bf16", True, 0, False, 3 * tensor, tensor, block=block
    )
    seconds = attention_seconds(forward, V6E)
    if call["backward"]:
        late = int(call["block_q_backward"]), int(call["block_kv_backward"])
        one = call["backward"] == "one"
        seconds += attention_seconds(replace(forward, backward=True, block=late, fused=one), V6E)
    if call["transposed_q"]:
        seconds += hbm_seconds(tensor, tensor, V6E)
    return 1e6 * float(seconds)


@pytest.mark.parametrize(
    ("backward", "median", "nine_in_ten"), [(False, 0.04, 0.11), (True, 0.04, 0.07)]
)
def test_calls_in_42_shapes_of_blocks(backward: bool, median: float, nine_in_ten: float) -> None:
    some = [call for call in calls() if bool(call["backward"]) == backward]
    ratios = np.array([float(call["us"]) / predicted_us(call) for call in some])
    errors = np.abs(1 / ratios - 1)
    assert np.median(errors) <= median
    assert np.quantile(errors, 0.9) <= nine_in_ten
    assert np.median(ratios) == pytest.approx(1, abs=0.03)


def in_step(batch: int, seq: int, heads: int, width: int, block: tuple[int, int]) -> AttentionWork:
    tensor = 2 * batch * heads * seq * width
    return AttentionWork(
        batch, heads, seq, seq, width, "bf16", True, 0, False, 3 * tensor, tensor, block=block
    )


QWEN = in_step(3, 8192, 32, 128, (2048, 2048))
"""Qwen3 8B by MaxText of June 2026."""
LLAMA = replace(in_step(5, 8192, 32, 128, (2048, 1024)), library=TOKAMAX)
"""Llama 3 8B in JAX of April 2026, with base 2, fused reciprocals and an estimate of the logits."""
YX = in_step(16, 2048, 8, 256, (1024, 512))
"""A model of 272M parameters by MaxText with jax 0.10.2, whose kernels compare segments."""


@pytest.mark.parametrize(
    ("work", "part", "block", "us"),
    [
        (LLAMA, "", (2048, 1024), 10062),
        (LLAMA, "all", (2048, 2048), 22406),
        (QWEN, "", (2048, 2048), 9410),
        (QWEN, "all", (2048, 2048), 13870),
        (YX, "", (1024, 512), 1516),
        (YX, "dq", (2048, 512), 1438),
        (YX, "dkv", (2048, 512), 1789),
    ],
)
def test_kernels_of_profiled_steps(
    work: AttentionWork, part: str, block: tuple[int, int], us: float
) -> None:
    """No call of these was fitted to; forward kernels of MaxText compare segments besides."""
    kernel = replace(work, part=part, backward=bool(part), block=block)
    assert 1e6 * attention_seconds(kernel, V6E) == pytest.approx(us, rel=0.125)
