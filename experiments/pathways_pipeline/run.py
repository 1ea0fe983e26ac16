"""Pipelines of 4 and of 8 stages: Pathways' 3B decoder on 64 v3 chips.

    python experiments/pathways_pipeline/run.py

The script varies what the paper leaves open: the sequence length, and how the cores of a stage
split its work.
"""

from itertools import product

import tpusim as ts

TOKENS_PER_S = {(4, 16): 133.7e3, (8, 32): 132.7e3}
"""Measured tokens per second by stages and microbatches (arXiv:2203.12533, table 2)."""

CORES, BATCH = 128, 2048
LAYERS = {4: (15, 16, 16, 15), 8: (7, 8, 8, 8, 8, 8, 8, 7)}
"""The embedding and the softmax replace one layer each, as 62 layers of 64 suggest."""

SEQ_LENS = (512, 1024)
TENSOR = (1, 2, 4, 8)
"""Cores of a stage that split each layer; the others split its batch and weights (fsdp)."""

MODEL = ts.models.Transformer(
    name="pathways-3b", layers=62, embed=2048, mlp=8192, heads=16, vocab=32000, gated=False,
    activation="gelu", tied_embeddings=True, rotary=False, attention="dot",
)  # fmt: skip
POD = ts.Slice("v3", "8x8")


def plan(stages: int, microbatches: int, seq_len: int, tensor: int) -> ts.Plan:
    """Return a plan of equal stages, `tensor` cores of which split each layer."""
    cores = CORES // stages // tensor
    piped = {"schedule": "gpipe", "stage_layers": LAYERS[stages]} if stages > 1 else {}
    return ts.Plan(
        mesh={"stage": stages, "fsdp": cores, "tensor": tensor}, seq_len=seq_len,
        global_batch=BATCH, microbatches=microbatches, optimizer="adafactor", **piped,
    )  # fmt: skip


def main() -> None:
    """Print a row for each sequence length and number of cores per layer."""
    print("| tokens | tensor | 4 stages [k tokens/s] | 8 stages | ratio | bubbles | fits |")
    print("| ---: | ---: | ---: | ---: | ---: | --- | --- |")
    for seq_len, tensor in product(SEQ_LENS, TENSOR):
        four, eight = (
            ts.simulate(MODEL, plan(stages, microbatches, seq_len, tensor), POD)
            for stages, microbatches in ((4, 16), (8, 32))
        )
        print(
            f"| {seq_len} | {tensor} | {four.tokens_per_s / 1e3:.1f} "
            f"| {eight.tokens_per_s / 1e3:.1f} | {eight.tokens_per_s / four.tokens_per_s:.3f} "
            f"| {four.bubble:.1%}, {eight.bubble:.1%} "
            f"| {'yes' if four.fits and eight.fits else 'no'} |"
        )
    measured = {stages: rate for (stages, _), rate in TOKENS_PER_S.items()}
    print(
        f"\nmeasured: {measured[4] / 1e3:.1f}, {measured[8] / 1e3:.1f}, ratio "
        f"{measured[8] / measured[4]:.3f}"
    )


if __name__ == "__main__":
    main()
