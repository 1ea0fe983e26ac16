"""Plans that do not fit, and whether the TPU compiler takes what tpusim suggests.

    python experiments/making_it_fit/run.py --check --out making_it_fit

Five models on four chips. Each plan is simulated; the first suggestion of its summary is exported
and compiled by the TPU compiler (extra: xla), which says what it needs of HBM. Without `--check`
nothing is compiled, and the table has the suggestions alone.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure

import tpusim as ts

GIB = 2.0**30

MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama3-8b": {"seq_len": 8192},
    "gemma2-9b": {"seq_len": 4096},
    "deepseek-v2-lite": {"seq_len": 4096},
    "t5-3b": {"seq_len": 512},
    "vit-g/14": {},
}
"""Models, and the keys that all of their plans have."""

PLANS: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("llama3-8b", "v4:2x2x4"): {"mesh": {"fsdp": 16}, "global_batch": 128},
    ("llama3-8b", "v5e:4x4"): {"mesh": {"fsdp": 16}, "global_batch": 32},
    ("llama3-8b", "v6e:4x4"): {"mesh": {"fsdp": 16}, "global_batch": 64, "remat": "minimal"},
    ("llama3-8b", "7x:2x2x2"): {"mesh": {"fsdp": 16}, "global_batch": 128, "remat": "none"},
    ("gemma2-9b", "v4:2x2x4"): {"mesh": {"fsdp": 16}, "global_batch": 128},
    ("gemma2-9b", "v5e:4x8"): {"mesh": {"fsdp": 32}, "global_batch": 128},
    ("gemma2-9b", "v6e:4x4"): {"mesh": {"data": 2, "fsdp": 8}, "global_batch": 128},
    ("gemma2-9b", "7x:2x2x2"): {"mesh": {"fsdp": 16}, "global_batch": 512},
    ("deepseek-v2-lite", "v4:2x2x4"): {"mesh": {"fsdp": 4, "expert": 4}, "global_batch": 128},
    ("deepseek-v2-lite", "v5e:4x8"): {"mesh": {"fsdp": 8, "expert": 4}, "global_batch": 128},
    ("deepseek-v2-lite", "v6e:4x4"): {"mesh": {"fsdp": 4, "expert": 4}, "global_batch": 128},
    ("deepseek-v2-lite", "7x:2x2x2"): {"mesh": {"fsdp": 4, "expert": 4}, "global_batch": 512},
    ("t5-3b", "v4:2x2x2"): {"mesh": {"data": 8}, "global_batch": 128},
    ("t5-3b", "v5e:4x4"): {"mesh": {"data": 4, "tensor": 4}, "global_batch": 512},
    ("t5-3b", "v6e:2x4"): {"mesh": {"data": 8}, "global_batch": 128},
    ("t5-3b", "7x:2x2x1"): {"mesh": {"data": 8}, "global_batch": 4096},
    ("vit-g/14", "v4:2x2x2"): {"mesh": {"data": 8}, "global_batch": 1024, "remat": "none"},
    ("vit-g/14", "v5e:2x4"): {"mesh": {"data": 8}, "global_batch": 256},
    ("vit-g/14", "v6e:2x4"): {"mesh": {"data": 8}, "global_batch": 1024, "remat": "minimal"},
    ("vit-g/14", "7x:2x2x1"): {"mesh": {"data": 8}, "global_batch": 1024, "remat": "none"},
}
"""The plan of each model on a slice of each chip."""


class Row(NamedTuple):
    """A plan that does not fit, and its first suggestion.

    before, after: bytes of HBM that the plan and the suggestion need.
    compiled: bytes that the compiler needs; None if nothing was compiled.
    refused: the compiler's words, or those of the export; empty if it takes the program.
    """

    model: str
    pod: str
    before: float
    have: float
    settings: str
    after: float
    slower: float
    compiled: float | None
    refused: str


def plans() -> dict[tuple[str, str], ts.Plan]:
    """Return the plan of each model and slice."""
    return {
        (model, pod): ts.Plan(**{**MODELS[model], **keys}) for (model, pod), keys in PLANS.items()
    }


def rows(*, check: bool) -> Iterator[Row]:
    """Yield the row of each plan."""
    for (model, pod), plan in plans().items():
        result = ts.simulate(model, plan, pod)
        first = result.ways_to_fit().ways[0]
        compiled, refused = None, ""
        if check:
            try:
                made = ts.check(model, first.plan, first.pod)
                compiled, refused = made.program.hbm_peak_bytes, made.compiled.refusal or ""
            except ts.TpusimError as error:
                refused = str(error)
        yield Row(
            model,
            pod,
            result.hbm_peak_bytes,
            result.hbm_bytes,
            first.command.removeprefix("--set "),
            first.hbm_peak_bytes,
            first.step_time_s / first.before_s - 1,
            compiled,
            refused,
        )


def line(row: Row) -> str:
    """Return a row of the table, in GiB."""
    made = "-" if row.compiled is None else f"{row.compiled / GIB:.1f}"
    took = row.refused or ("fits" if row.compiled is not None else "-")
    return (
        f"| {row.model} | {row.pod} | {row.before / GIB:.1f} of {row.have / GIB:.1f} | "
        f"`{row.settings}` | {row.slower:+.1%} | {row.after / GIB:.1f} | {made} | {took} |"
    )


def figure(found: Sequence[Row]) -> Figure:
    """Return the figure: what each plan needs before and after, over what there is."""
    drawn = Figure(figsize=(7.5, 5.5), layout="constrained")
    axes = drawn.subplots()
    at = range(len(found))[::-1]
    before, after = ([each / row.have for each, row in zip(of, found, strict=True)] for of in (
        [row.before for row in found], [row.after for row in found]))  # fmt: skip
    axes.hlines(at, after, before, color="0.8", zorder=0)
    axes.plot(before, at, "o", color="tab:red", label="the plan")
    axes.plot(after, at, "o", color="tab:blue", label="with the first suggestion")
    took = [(row.compiled / row.have, y) for row, y in zip(found, at, strict=True) if row.compiled]
    if took:
        axes.plot(*zip(*took, strict=True), "x", color="black", label="by the compiler")
    axes.axvline(1.0, color="0.5", linewidth=1)
    axes.set_yticks(at, [f"{row.model} on {row.pod}" for row in found], fontsize=8)
    axes.set_xscale("log")
    axes.set_xticks([0.25, 0.5, 1, 2, 4, 8], ["1/4", "1/2", "1", "2", "4", "8"], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_xlabel("HBM needed, over what the compiler can use")
    axes.legend(fontsize=8)
    return drawn


def main() -> None:
    """Print the table, and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compile each suggestion")
    parser.add_argument("--out", type=Path, help="the folder of the figure")
    asked = parser.parse_args()
    print("| model | slice | needs | first suggestion | step | needs then | compiled | compiler |")
    print("| --- | --- | ---: | --- | ---: | ---: | ---: | --- |")
    found = []
    for row in rows(check=asked.check):
        found.append(row)
        print(line(row), flush=True)
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context({"svg.hashsalt": "tpusim"}):
            figure(found).savefig(asked.out / "making_it_fit.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
