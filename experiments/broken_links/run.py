"""What a broken switch costs: all-to-alls and steps of plausible models on three tori of v4.

    python experiments/broken_links/run.py

Takes an optical circuit switch out of each dimension in turn, of the slices whose slowdown is
published (Zu et al., NSDI 2024). The models of the published steps are not, so a span of encoders
and decoders stands for them. `--quick` takes the smallest model of each slice.
"""

import argparse
from collections.abc import Iterator
from itertools import product
from statistics import median
from typing import NamedTuple

import numpy as np

import tpusim as ts
from tpusim.costs import SliceLinks, route
from tpusim.hardware import Slice, Span, degraded
from tpusim.models import Transformer
from tpusim.program import CollectiveKind

EXCHANGES = {"4x4x4": 70.0 / 75.9, "4x4x8_twisted": 63.2 / 62.1, "4x8x8_twisted": 53.7 / 54.3}
"""Throughput of an all-to-all with a switch out over that of the healthy slice, as published."""


class Published(NamedTuple):
    """A published slowdown of a step, and the models that may stand for its own.

    slower: seconds of the step with a switch out over those of the healthy slice, minus 1.
    sizes: layers, embed and heads; the MLP is four times as wide as the embedding.
    """

    shape: str
    kind: str
    seq_len: int
    slower: float
    sizes: tuple[tuple[int, int, int], ...]


ENCODERS = (24, 1024, 16), (32, 2048, 16), (48, 4096, 32)
DECODERS = (16, 2048, 16), (32, 4096, 32), (60, 6656, 52)
STEPS = {
    "BERT-1": Published("4x4x4", "encoder", 512, 0.012, ENCODERS),
    "LLM-1": Published("4x4x8_twisted", "decoder", 2048, 0.026, DECODERS),
    "BERT-2": Published("4x8x8_twisted", "encoder", 512, 0.032, ENCODERS),
}
MESHES = "data", "fsdp", "fsdp x tensor"
TOKENS = 4096, 16384
"""Tokens of a step on each chip."""


class Case(NamedTuple):
    """A plan, and how much longer its step is with a switch out of each dimension."""

    name: str
    model: str
    mesh: str
    tokens: int
    exposed: float
    slower: tuple[float, ...]


def mesh_of(written: str, chips: int) -> dict[str, int]:
    """Return the axes of a mesh; tensor has four devices."""
    if written == "fsdp x tensor":
        return {"fsdp": chips // 4, "tensor": 4}
    return {written: chips}


def cases(name: str, quick: bool) -> Iterator[Case]:
    """Yield the cases of a published step."""
    given = STEPS[name]
    pod = Slice("v4", given.shape)
    sizes = given.sizes[:1] if quick else given.sizes
    for (layers, embed, heads), mesh, tokens in product(sizes, MESHES, TOKENS):
        model = Transformer(
            kind=given.kind,
            layers=layers,
            embed=embed,
            mlp=4 * embed,
            heads=heads,
            head_dim=128 if embed > 1024 else 64,
            vocab=32000,
        )
        batch = pod.chips * tokens // given.seq_len
        plan = ts.Plan(
            mesh=mesh_of(mesh, pod.chips), seq_len=given.seq_len, global_batch=batch, remat="full"
        )
        healthy = ts.simulate(model, plan, pod)
        if healthy.fits:
            slower = (
                ts.simulate(model, plan, degraded(pod, "switch", dim)).step_time_s
                for dim in range(3)
            )
            exposed = healthy.exposed_s / healthy.step_time_s
            ratios = tuple(step / healthy.step_time_s - 1 for step in slower)
            yield Case(name, f"{layers} x {embed}", mesh, tokens, exposed, ratios)


def exchanges() -> Iterator[tuple[str, float, list[float]]]:
    """Yield each shape, the published ratio of throughputs, and those with each dimension hit."""
    for shape, published in EXCHANGES.items():
        pod = Slice("v4", shape)
        dims = pod.topology.dims
        spans, chips = [Span(dim, size) for dim, size in enumerate(dims)], np.indices(dims)
        whole = route(CollectiveKind.ALL_TO_ALL, spans, pod.topology)
        around = (SliceLinks.of(degraded(pod, "switch", dim), 0) for dim in range(3))
        loads = [each.route(whole, chips.reshape(3, -1).T).share for each in around]
        yield shape, published, [whole.share / load for load in loads]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one model for each slice")
    given = parser.parse_args()
    print("| slice | all-to-all, published | switch of x | of y | of z |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for shape, published, found in exchanges():
        print(f"| {shape} | {published:.3f} | " + " | ".join(f"{x:.3f}" for x in found) + " |")
    every = [case for name in STEPS for case in cases(name, given.quick)]
    print("\n| step | model | mesh | tokens a chip | exposed | switch of x | of y | of z |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for case in every:
        shown = " | ".join(f"{slower:.1%}" for slower in case.slower)
        print(
            f"| {case.name} | {case.model} | {case.mesh} | {case.tokens:,} | {case.exposed:.1%} | "
            f"{shown} |"
        )
    print("\n| step | slice | published | least | median | most |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for name, step in STEPS.items():
        all_slower = sorted(slower for case in every if case.name == name for slower in case.slower)
        print(
            f"| {name} | {step.shape} | {step.slower:.1%} | {all_slower[0]:.1%} | "
            f"{median(all_slower):.1%} | {all_slower[-1]:.1%} |"
        )


if __name__ == "__main__":
    main()
