"""The table of systems in README.md and on the page of this experiment.

    python experiments/systems/table.py README.md experiments/systems/README.md

writes it between the marks `<!-- systems -->` and `<!-- /systems -->` of each page.
"""

import csv
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import tpusim as ts
from tpusim.base.units import format_seconds
from tpusim.validation.systems import validate_systems
from tpusim.validation.systems.measured_rate import measured_of
from tpusim.validation.systems.system_rows import SystemRow, system_row

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
TABLES = ("published_systems.csv", "vision_runs.csv")


class System(NamedTuple):
    """A line of the table.

    name: the system.
    sharded: what is divided how.
    file: its run file, without the ending.
    row: the row of a table of measured systems; empty where no step time is public.
    """

    name: str
    sharded: str
    file: str
    row: str = ""


SYSTEMS = (
    System("Dense encoder 480B", "2-D", "../bert_480b/run", "mlperf11-480B-v4-2048"),
    System("PaLM 540B, two pods", "2-D, data over pods", "../palm_540b/run", "palm-540B-v4-6144"),
    System("LaMDA 137B", "2-D", "lamda_137b", "lamda-137B-v3-1024"),
    System("GShard M4, 128 experts", "one expert per core", "gshard_m4", "gshard-moe-128E-36L"),
    System("Switch-base, 128 experts", "4 experts per core", "switch_base",
           "switch-switch-base-cf1.25"),
    System("T5 11B", "data, tensor", "t5_11b", "pathways-t5-11b"),
    System("Transformer-big", "data", "transformer_big", "transformer-v0.7-v4-16"),
    System("GNMT (LSTM)", "data", "gnmt", "gnmt-v0.7-v4-16"),
    System("Parti 20B (text to image)", "data, two circular pipelines", "parti_20b"),
    System("BigSSL Conformer 8B", "2-D", "bigssl_8b"),
    System("ViT-S/16", "data", "vit_s16", "bigvision-vit-s16-v3-8"),
    System("ViT-22B", "FSDP, tensor", "vit_22b"),
    System("SigLIP B/16 (two towers)", "image: FSDP; text: FSDP, tensor", "siglip_b16"),
    System("ResNet-50", "data", "resnet50", "mlperf07-resnet-v4-64"),
    System("SSD-ResNet34", "data", "ssd", "ssd-v1.0-v4-128"),
    System("Mask R-CNN", "data", "mask_rcnn", "maskrcnn-v0.7-v4-512"),
    System("3-D U-Net", "data, height in 2", "unet3d", "mlperf10-unet3d-v4-64"),
    System("Stable Diffusion v2", "data", "stable_diffusion", "mlperf-v5.0-sd-v6e-256"),
    System("Flux-dev 12B", "FSDP", "flux_dev", "maxdiffusion-flux-v5p8"),
    System("MetNet-2", "data, height and width in 4", "metnet2"),
)  # fmt: skip


@cache
def measured_rows() -> dict[str, SystemRow]:
    """Return the rows of both tables that can be read, by their ids."""
    found = {}
    for name in TABLES:
        with (FOLDER / name).open(newline="", encoding="utf-8") as file:
            for cells in csv.DictReader(file):
                if any(cells["id"] == system.row for system in SYSTEMS):
                    found[cells["id"]] = system_row(cells)
    return found


def lines() -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| system | sharded | chips | measured | predicted | error | run file |"
    yield "| --- | --- | --- | ---: | ---: | ---: | --- |"
    for system in SYSTEMS:
        path = (FOLDER / f"{system.file}.toml").resolve().relative_to(ROOT)
        run = ts.read_run(ROOT / path)
        result = ts.simulate(run.model, run.plan, run.pod)
        measured, error = "not public", "-"
        if system.row:
            rate = measured_of(measured_rows()[system.row])
            assert rate is not None
            step = rate.seconds_of(result)
            measured, error = format_seconds(step), f"{result.step_time_s / step - 1:+.0%}"
        cells = (
            system.name,
            system.sharded,
            f"{run.pod.chips} {run.pod.chip.generation}",
            measured,
            format_seconds(result.step_time_s),
            error,
            f"[{path.name if path.name != 'run.toml' else path.parent.name}](LINK{path})",
        )
        yield f"| {' | '.join(cells)} |"


def statistics() -> Iterator[str]:
    """Yield the lines of the statistics of both tables."""
    yield "| table | runs | failed | median error | mean | 90th percentile | signed mean |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for name in TABLES:
        found = validate_systems(FOLDER / name).statistics
        errors = (found[f"{kind}_abs_error"] for kind in ("median", "mean", "p90"))
        cells = (*(f"{error:.1%}" for error in errors), f"{found['mean_error']:+.1%}")
        yield f"| {name} | {found['runs']} | {found['failed']} | {' | '.join(cells)} |"


def page_with(text: str, tables: Mapping[str, str], page: Path) -> str:
    """Return a page with the tables of today between their marks, links from where it is."""
    up = "../" * len(page.resolve().parent.relative_to(ROOT).parts)
    for mark, table in tables.items():
        between = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)", re.S)
        linked = table.replace("LINK", up)
        text = between.sub(lambda found, own=linked: f"{found[1]}{own}\n{found[2]}", text)
    return text


def main() -> None:
    """Write the tables into the pages that are named."""
    tables = {"systems": "\n".join(lines()), "statistics": "\n".join(statistics())}
    for name in sys.argv[1:]:
        page = Path(name)
        text = page_with(page.read_text("utf-8"), tables, page)
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
