"""Published times of SGLang-JAX's fused kernel of experts, as it was in April 2026."""

import pytest

from tpusim.costs.compute import group_seconds, step_matmul_seconds
from tpusim.hardware import load_chip
from tpusim.plan.serving_plan import EXPERT_TILES, FUSED_BLOCK
from tpusim.program import MatmulWork, VectorWork, grouped_bytes_read
from tpusim.serving.engines import Engine

TIMES_MS = {
    16: 0.328,
    32: 0.341,
    64: 0.378,
    128: 0.433,
    256: 0.578,
    512: 0.887,
    1024: 1.795,
    2048: 3.282,
    4096: 6.956,
    8192: 13.653,
    16384: 27.051,
    32768: 52.730,
}
"""Milliseconds of the experts of a layer of MiMo-V2-Flash by tokens of all devices: 256 experts of
which a token takes 8, embed 4096, width 2048, bf16, on 8 devices of 7x, each with 6 of 48 experts
that all tokens choose (sgl-project/sglang-jax, docs/tuning_results_tpuv7_mimo_v2_flash.md
@d53725cb, hotspot_count=48)."""

FITTED = (16, 32, 64, 128)
"""Tokens whose times gave the least time of an expert; no constant has seen the others."""

DEVICES, CHOICES, EMBED, WIDTH, EXPERTS, REACHED = 8, 8, 4096, 2048, 256, 6


@pytest.mark.parametrize("tokens", TIMES_MS)
def test_the_kernel_from_its_exchange_and_its_matmuls(tokens: int) -> None:
    """The message of a row comes from another kernel, of another model, on 32 devices."""
    device = load_chip("7x").device
    rows = tokens * CHOICES / DEVICES
    blocks = -(-tokens // (FUSED_BLOCK * DEVICES))
    reads = REACHED * blocks
    waited = blocks * EXPERTS / DEVICES * Engine.of("sglang-jax", "a85c1ba7").expert_s

    def matmul(k: int, n: int) -> float:
        read = grouped_bytes_read(reads, rows / reads, k, n, "m", 2, EXPERT_TILES, 2)
        work = MatmulWork(
            reads, rows / reads, k, n, "bf16", read, rows * n * 2, 0, "m", EXPERT_TILES
        )
        return float(step_matmul_seconds(work, device))

    moved = rows * EMBED * 2
    sent = VectorWork(moved, moved, 0, sent=rows, waited=waited)
    added = VectorWork(2 * moved, moved * (1 + 1 / CHOICES), 3 * rows * EMBED, sent=rows)
    exchange = sum(float(group_seconds(work, device)) for work in (sent, added))
    found = 2 * matmul(EMBED, WIDTH) + matmul(WIDTH, EMBED) + exchange
    within = 0.03 if tokens in FITTED else 0.15
    assert found * 1e3 == pytest.approx(TIMES_MS[tokens], rel=within)
