"""The tables of systems on the page of this experiment.

    python experiments/systems/table.py

writes them between their marks, such as `<!-- systems -->` and `<!-- /systems -->`.
"""

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import tpusim as ts
from tpusim.base.units import format_seconds
from tpusim.results import PlanResult
from tpusim.runfile import SimulationRun
from tpusim.validation import Validation, validate
from tpusim.validation.open_span import StepSpan, open_span

FOLDER = Path(__file__).parent
MEASURED = FOLDER.parents[1] / "tests" / "measured"
PAGE = FOLDER / "README.md"


class System(NamedTuple):
    """A line of the table.

    name: the system.
    sharded: what is divided how.
    file: its run file, without the ending; in `MEASURED` where a step time is public.
    """

    name: str
    sharded: str
    file: str


SYSTEMS = (
    System("Dense encoder 480B", "2-D", "runs/calibration/mlp11-v4-480b"),
    System("PaLM 540B, two pods", "2-D, data over pods", "systems/palm-540b-v4-6144"),
    System("LaMDA 137B", "2-D", "systems/lamda-137b-v3-1024"),
    System("GShard M4, 128 experts", "one expert per core", "systems/gshard-moe-128e-36l"),
    System("Switch-base, 128 experts", "4 experts per core", "systems/switch-switch-base-cf1-25"),
    System("T5 11B", "data, tensor", "t5_11b"),
    System("Transformer-big", "data", "systems/transformer-v0-7-v4-16"),
    System("GNMT (LSTM)", "data", "systems/gnmt-v0-7-v4-16"),
    System("Parti 20B (text to image)", "data, two circular pipelines", "parti_20b"),
    System("BigSSL Conformer 8B", "2-D", "bigssl_8b"),
    System("MLP-Mixer B/16", "data", "mixer_b16"),
    System("ViT-S/16", "data", "systems/bigvision-vit-s16-v3-8"),
    System("FlexiViT-B", "data", "flexivit_b"),
    System("ViT-22B", "2-D", "vit_22b"),
    System("SigLIP B/16 (two towers)", "image: FSDP; text: FSDP, tensor", "siglip_b16"),
    System("CoCa 2.1B (captions and pairs)", "data", "coca"),
    System("ResNet-50", "data", "systems/mlperf07-resnet-v4-64"),
    System("SSD-ResNet34", "data", "systems/ssd-v1-0-v4-128"),
    System("Mask R-CNN", "data", "systems/maskrcnn-v1-0-v4-128"),
    System("3-D U-Net", "data, height in 2", "systems/mlperf10-unet3d-v4-64"),
    System("Stable Diffusion v2", "data", "systems/mlperf-v5-0-sd-v6e-256"),
    System("Flux-dev 12B", "FSDP", "systems/maxdiffusion-flux-v5p8"),
    System("Wan 2.1 14B (video)", "FSDP", "wan_14b"),
    System("MetNet-2", "data, height and width in 4", "metnet2"),
)


def lines() -> Iterator[str]:
    """Yield the lines of the table."""
    heads = ("system", "sharded", "chips", "measured", "predicted", "error", "span", "run file")
    yield f"| {' | '.join(heads)} |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: | --- |"
    for system in SYSTEMS:
        folder = MEASURED if "/" in system.file else FOLDER
        path = folder / f"{system.file}.toml"
        run = ts.read_run(path)
        result = simulated(run)
        measured, error, spanned = "not public", "-", ""
        if run.measured is not None:
            step = run.measured.step_s
            measured, error = format_seconds(step), f"{result.step_time_s / step - 1:+.0%}"
            spanned = span_text(open_span(run.measured, result, run.plausible, simulated), step)
        cells = (
            system.name,
            system.sharded,
            f"{run.pod.chips} {run.pod.chip.generation}",
            measured,
            format_seconds(result.step_time_s),
            error,
            spanned,
            f"[{path.name}]({os.path.relpath(path, FOLDER)})",
        )
        yield f"| {' | '.join(cells)} |"


def simulated(run: SimulationRun) -> PlanResult:
    """Return the result of a run."""
    return ts.simulate(run.model, run.plan, run.pod, input=run.input)


def span_text(span: StepSpan | None, step_s: float) -> str:
    """Return the span of a prediction, and whether the measured step is in it."""
    if span is None:
        return ""
    where = "inside" if span.has(step_s) else "outside"
    return f"{format_seconds(span.low_s)} to {format_seconds(span.high_s)}, {where}"


def open_lines() -> Iterator[str]:
    """Yield a line for each measured system whose source leaves something open."""
    yield "| system | measured | span | what is open |"
    yield "| --- | ---: | ---: | --- |"
    for one in validated().outcomes:
        if one.span is not None:
            keys = ", ".join(f"`{key}`" for key in one.run.measured.open)
            cells = (
                one.run.id,
                format_seconds(one.run.step_s),
                span_text(one.span, one.run.step_s),
            )
            yield f"| {' | '.join((*cells, keys))} |"


@cache
def validated() -> Validation:
    """Return all measured systems, simulated."""
    return validate(MEASURED / "systems")


def statistics() -> Iterator[str]:
    """Yield the lines of the statistics of all measured systems."""
    yield "| systems | failed | median error | mean | 90th percentile | bias |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: |"
    found = validated().statistics
    errors = (found[f"{kind}_abs_error"] for kind in ("median", "mean", "p90"))
    cells = (*(f"{error:.1%}" for error in errors), f"{found['mean_error']:+.1%}")
    yield f"| {found['runs']} | {found['failed']} | {' | '.join(cells)} |"


def page_with(text: str, tables: Mapping[str, str]) -> str:
    """Return the page with the tables of today between their marks."""
    for mark, table in tables.items():
        between = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)", re.S)
        text = between.sub(lambda found, own=table: f"{found[1]}{own}\n{found[2]}", text)
    return text


def main() -> None:
    """Write the tables into the page."""
    tables = {
        "systems": "\n".join(lines()),
        "statistics": "\n".join(statistics()),
        "open": "\n".join(open_lines()),
    }
    PAGE.write_text(page_with(PAGE.read_text("utf-8"), tables), encoding="utf-8")


if __name__ == "__main__":
    main()
