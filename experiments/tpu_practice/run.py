"""What each practice of training on TPUs gains, simulated with it and without it.

    python experiments/tpu_practice/run.py --out tpu_practice

Input, convolutions and precision: ResNet-50 on 16 chips of v5e, fed by its hosts. Quantisation and
parallelism: Llama 3.1 70B on 64 chips of v5p. All other practices of the run stay as they are.
"""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure

import tpusim as ts

IMAGE_BYTES = 110e3
"""Bytes of a JPEG of ImageNet, as `tpusim input-rate` has it."""

RAW_BYTES = 500 * 375 * 3
"""Bytes of its pixels, 500 x 375 as those whose decoding was measured."""

SPLIT_RATE = 2_650 * 224 * 224 * 3 * 2
"""B/s of batches in bf16 that one thread splits at 2,650 images/s: the message of tensorflow
commit 6285522, 29 March 2018."""

MESH = {"fsdp": 64}
STAGES = {"dcn_stage": 4, "fsdp": 64}
COLORS = {"input": "C0", "computation": "C1", "batch": "C2", "parallelism": "C3"}


class Run(NamedTuple):
    """What `ts.simulate` takes."""

    model: ts.models.Architecture
    plan: ts.Plan
    pod: ts.Slice
    input: ts.Input | None = None


class Practice(NamedTuple):
    """A practice, what it replaces, and the runs without it and with it."""

    area: str
    what: str
    instead: str
    without: Run
    followed: Run


class Gain(NamedTuple):
    """A practice, and the examples per second without it and with it."""

    practice: Practice
    before: float
    after: float
    fit: tuple[str, str]

    @property
    def faster(self) -> float:
        """The rate with the practice over the one without."""
        return self.after / self.before

    def __str__(self) -> str:
        rates = (_rate(*each) for each in zip((self.before, self.after), self.fit, strict=True))
        kind = self.practice
        return (
            f"| {kind.area} | {kind.what} | {kind.instead} | {' | '.join(rates)} | {self.times} |"
        )

    @property
    def times(self) -> str:
        """The gain in words; in brackets if one of the two does not fit."""
        shown = f"{self.faster:.2f} x" if self.faster < 10 else f"{self.faster:.1f} x"
        return shown if set(self.fit) == {"fits"} else f"({shown})"


def _rate(rate: float, fit: str) -> str:
    """Return examples per second, and whether the step does not fit in HBM."""
    shown = f"{rate:,.0f}" if rate >= 100 else f"{rate:.2f}"
    return shown if fit == "fits" else f"{shown}, {fit}"


def images(
    feed: Mapping[str, Any] = {}, *, shape: str = "4x4", folded: bool = True, **plan: Any
) -> Run:
    """Return a run of ResNet-50 with changes of its input and its plan."""
    model, pod = ts.models.load("resnet-50", space_to_depth=folded), ts.Slice("v5e", shape)
    keys: dict[str, Any] = {"mesh": {"data": pod.devices}, "global_batch": 256 * pod.devices} | plan
    return Run(model, ts.Plan(**keys), pod, ts.Input(kind="jpeg", readers=32).replace(**feed))


def text(*, shape: str = "4x4x4", slices: int = 1, **plan: Any) -> Run:
    """Return a run of Llama 3.1 70B with changes of its plan."""
    keys: dict[str, Any] = {"mesh": MESH, "seq_len": 4096, "global_batch": 64} | plan
    pod = ts.Slice("v5p", shape, num_slices=slices)
    return Run(ts.models.load("llama3.1-70b"), ts.Plan(**keys), pod)


def of_input() -> Iterator[Practice]:
    """Yield the practices of the input pipeline."""
    for what, instead, without, followed in (
        ("reads of 8 MiB", "a read for each image", {"read_bytes": IMAGE_BYTES}, {}),
        ("32 reads in flight", "4", {"readers": 4}, {}),
        ("images compressed (JPEG)", "pixels, no decoding",
         {"record_bytes": RAW_BYTES, "decode_s": 0.0}, {}),
        ("a thread for each vCPU decodes", "8 threads", {"workers": 8}, {}),
        ("batches copied in one pass", "split on one thread", {"batch_rate": SPLIT_RATE}, {}),
        ("2 batches prefetched", "none", {"prefetch": 0}, {}),
        ("16,384 records shuffled", "none", {}, {"shuffle": 16384}),
    ):  # fmt: skip
        yield Practice("input", what, instead, images(without), images(followed))


def of_computation() -> Iterator[Practice]:
    """Yield the practices of convolutions, mixed precision and quantisation."""
    area, folded = "computation", "first convolution space to depth"
    yield Practice(area, folded, "7 x 7 of 3 channels", images(folded=False), images())
    small: dict[str, Any] = {"mesh": {"data": 16}, "global_batch": 2048}
    bf16, f32 = images(**small), images(**small, dtype="f32", grad_dtype="f32")
    yield Practice(area, "mixed precision (ResNet-50, batch 2048)", "f32", f32, bf16)
    f32 = text(dtype="f32", grad_dtype="f32")
    yield Practice(area, "mixed precision (Llama)", "f32", f32, text())
    int8 = text(matmul_dtype="int8")
    yield Practice(area, "int8 matmuls", "bf16", text(), int8)
    gathered = text(matmul_dtype="int8", gather_dtype="int8")
    yield Practice(area, "int8 matmuls and gathers", "bf16", text(), gathered)


def of_batch() -> Iterator[Practice]:
    """Yield the practices of batch and accumulation."""
    area = "batch"
    yield Practice(area, "256 images a chip", "32", images(global_batch=512), images())
    large, parts = images(global_batch=8192), images(global_batch=8192, microbatches=2)
    yield Practice(area, "2 microbatches of 8192 images", "one", large, parts)
    yield Practice(area, "256 sequences", "64", text(), text(global_batch=256))
    four = text(global_batch=256, microbatches=4)
    yield Practice(area, "256 in 4 microbatches", "in one", text(global_batch=256), four)


def of_parallelism() -> Iterator[Practice]:
    """Yield the ways to divide a model over chips."""
    area = "parallelism"
    one = images(shape="1x1")
    yield Practice(area, "data: 16 chips (ResNet-50)", "1 chip", one, images())
    yield Practice(area, "data, weights sharded", "replicated", text(mesh={"data": 64}), text())
    few: dict[str, Any] = {"mesh": {"fsdp": 16}, "global_batch": 16}
    divided: dict[str, Any] = {"mesh": {"fsdp": 16, "tensor": 4}, "global_batch": 16}
    small = text(shape="2x2x4", **few)
    yield Practice(area, "model: 64 chips, 16 sequences", "16 chips", small, text(**divided))
    data = text(slices=4, mesh={"dcn_data": 4, "fsdp": 64}, global_batch=1024)
    keys: dict[str, Any] = {"slices": 4, "mesh": STAGES, "global_batch": 1024}
    many, fewer = (text(**keys, microbatches=count) for count in (16, 4))
    mixed = text(**keys, microbatches=16, schedule="interleaved", virtual_stages=2)
    yield Practice(area, "pipeline over 4 slices", "data over them", data, many)
    yield Practice(area, "its 16 microbatches", "4", fewer, many)
    yield Practice(area, "its stages interleaved", "1F1B", many, mixed)


def gains() -> Iterator[Gain]:
    """Yield what each practice gains."""
    for practices in (of_input, of_computation, of_batch, of_parallelism):
        for each in practices():
            before, after = (
                ts.simulate(run.model, run.plan, run.pod, input=run.input)
                for run in (each.without, each.followed)
            )
            fit = (str(before.fit), str(after.fit))
            yield Gain(each, before.examples_per_s, after.examples_per_s, fit)


def draw(found: list[Gain]) -> Figure:
    """Return a figure: a bar for each gain, hatched where the run without it does not fit."""
    figure = Figure(figsize=(8.0, 6.2), layout="constrained")
    ax = figure.add_subplot()
    for row, gain in enumerate(found):
        hatch = "" if set(gain.fit) == {"fits"} else "//"
        color = COLORS[gain.practice.area]
        ax.barh(row, gain.faster - 1, left=1, color=color, hatch=hatch, edgecolor="white")
        ax.annotate(
            gain.times, (max(gain.faster, 1), row), (4, 0),
            textcoords="offset points", va="center", fontsize=8,
        )  # fmt: skip
    ax.set_yticks(range(len(found)), [gain.practice.what for gain in found], fontsize=8)
    ax.invert_yaxis()
    ax.set_xscale("log")
    ax.set_xlim(0.6, 50)
    ax.set_xticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    ax.axvline(1, color="black", linewidth=0.8)
    ax.set_xlabel("times as many examples per second as without it (brackets: one does not fit)")
    handles = [matplotlib.patches.Patch(color=color, label=area) for area, color in COLORS.items()]
    ax.legend(handles=handles, frameon=False, loc="lower right")
    return figure


def main() -> None:
    """Write the figure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out_tpu_practice"))
    given = parser.parse_args()
    found = list(gains())
    given.out.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "tpu_practice"}):
        draw(found).savefig(given.out / "gains.svg", metadata={"Date": None})
    print("| area | practice | in place of | examples/s without | with | faster |")
    print("| --- | --- | --- | ---: | ---: | ---: |")
    for gain in found:
        print(gain)


if __name__ == "__main__":
    main()
