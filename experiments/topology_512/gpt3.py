"""The second pair of plans of the TPU v4 paper: GPT-3 in 8 stages on 8x8x8, in 16 on 4x8x16.

    python experiments/topology_512/gpt3.py [--compile]

prints the table of README.md; `--compile` compiles the two plans of `COMPILED`, which needs
tpusim[xla].
"""

import argparse
from collections.abc import Iterator

from run import SEQ_LEN, TYPICAL, decoder

import tpusim as ts

EXPERTS = ("8x8x8", {"stage": 8, "fsdp": 8, "tensor": 8}, {"act_embed": "tensor"})
SEARCHED = ("4x8x16", {"stage": 16, "data": 4, "tensor": 8}, {})
"""Shape, mesh and rules: [pipeline 8, data 1, model 8 x 8] with 2-D sharding of activations and
weights, and [16, 4, 1 x 8] with 1-D (arXiv:2304.01433, section on the choice of topology)."""

PUBLISHED = (21.0, 25.0)
"""Sequences per second."""

BATCHES = ((512, 32), (512, 64), (1024, 64), (1024, 128), (1536, 64), (1536, 96))
"""Sequences per step, and microbatches: neither is published."""

COMPILED = (1024, 64)


def plan(pair: tuple[str, dict[str, int], dict[str, str]], batch: int, count: int) -> ts.Plan:
    """Return one of the pair with `batch` sequences in `count` microbatches."""
    return ts.Plan(
        mesh=pair[1], rules=pair[2], seq_len=SEQ_LEN, global_batch=batch, microbatches=count,
        schedule="circular", optimizer="adafactor",
    )  # fmt: skip


def table() -> Iterator[str]:
    """Yield the rates of both plans for each batch, and what they need."""
    model = decoder(TYPICAL)
    yield "| sequences | microbatches | 8 stages | idle | HBM | 16 stages | idle | HBM | ratio |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for batch, count in BATCHES:
        sides = [
            ts.simulate(model, plan(pair, batch, count), ts.Slice("v4", pair[0]))
            for pair in (EXPERTS, SEARCHED)
        ]
        shown = " | ".join(
            f"{batch / r.step_time_s:.1f} | {r.bubble:.0%} | {r.hbm_peak_bytes / 2**30:.0f} GiB"
            for r in sides
        )
        ratio = sides[0].step_time_s / sides[1].step_time_s
        yield f"| {batch} | {count} | {shown} | {ratio:.2f} |"


def compiled() -> Iterator[str]:
    """Yield the rates of both plans beside those of their programs."""
    for pair in (EXPERTS, SEARCHED):
        found = ts.check(
            decoder(TYPICAL), plan(pair, *COMPILED), ts.Slice("v4", pair[0])
        ).comparison
        rates = (COMPILED[0] / step for step in (found.plan_step_s, found.program_step_s))
        yield f"{pair[0]}: plan {next(rates):.1f}, program {next(rates):.1f} sequences/s"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="compile two of the plans")
    print("\n".join(compiled() if parser.parse_args().compile else table()))
