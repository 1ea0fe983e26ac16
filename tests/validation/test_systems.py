"""Measured systems of many kinds: each run file runs, and how far off it may be."""

import runpy
from functools import cache
from pathlib import Path
from statistics import median

import pytest

import tpusim as ts
from tpusim.validation import Validation, validate

ROOT = Path(__file__).parents[2]
SYSTEMS = ROOT / "tests/measured/systems"
PAGES = ROOT / "experiments/systems"

BOUNDS = {
    ("lingvo", "palm", "lamda", "pathways-3b", "shmap"): 0.11,
    ("gnmt",): 0.67,
    ("-sd-",): 0.15,
    ("vit",): 0.15,
    ("ssd",): 0.16,
    ("resnet", "r50"): 0.25,
    ("transformer", "t5"): 0.21,
    ("gshard", "switch-switch"): 0.3,
    ("bert",): 0.17,
}
"""For words of the names of a kind, the largest median of its absolute errors. Only to fall, unless
a measurement is corrected: without their evaluations, GNMT on 256 chips took 8.9 ms a step instead
of 21 ms, and Mask R-CNN on 256 chips, whose script splits each image over four, 16.8 instead of 25.
BERT's rose by 0.01 when shards of gradients of more than 1 MiB ceased to be merged, as in all 80 of
22 compiled plans.

Mask R-CNN has no such bound: see `MASK_RCNN`.
"""

MASK_RCNN = {
    "maskrcnn-v0-6-v3-256": (0.0678, 0.15),
    "maskrcnn-v0-6-v3-32": (0.2, 0.4568),
    "maskrcnn-v0-7-v4-16": (0.3, 0.4333),
    "maskrcnn-v0-7-v4-512": (0.0156, 0.046),
    "maskrcnn-v1-0-v4-128": (0.081, 0.098),
}
"""Seconds of a step of Mask R-CNN that its logs leave open.

Blocks of v0.7 and v1.0 begin when the host has evaluated the block before, while the devices train
on, and end with the steps of an evaluation (train_and_eval_runner.py), so they bound the step on
neither side: those of one configuration are 15.6 to 46 ms a step, of another 81 to 98. Epochs of
v0.6 hold the evaluation, 50 to 76 s of 139 on 256 cores, and an unknown part on 32; so do those of
v0.7 on 16 cores. There the lower end is not the source's: it is how far off the plan may be.
"""


@cache
def validated() -> Validation:
    return validate(SYSTEMS)


def errors() -> dict[str, float]:
    return {one.run.id: one.error for one in validated().outcomes if one.error is not None}


@pytest.mark.parametrize("words", BOUNDS, ids=lambda words: words[0])
def test_errors_of_a_kind_are_within_their_bound(words: tuple[str, ...]) -> None:
    found = [error for name, error in errors().items() if any(word in name for word in words)]
    assert found
    assert median(map(abs, found)) <= BOUNDS[words]


@pytest.mark.parametrize("name", MASK_RCNN)
def test_mask_rcnn_is_within_what_its_logs_leave_open(name: str) -> None:
    low, high = MASK_RCNN[name]
    (found,) = (one for one in validated().outcomes if one.run.id == name)
    assert low <= found.run.step_s * (1 + errors()[name]) <= high


def test_all_systems_together() -> None:
    """The mean holds two corrected measurements: GNMT and Mask R-CNN on 256 chips."""
    found = sorted(abs(error) for error in errors().values())
    assert len(found) == 53
    assert median(found) <= 0.2
    assert sum(found) / len(found) <= 0.3
    assert sum(found[:-2]) / len(found[:-2]) <= 0.24


OUTSIDE = {"gnmt-v0-7-v4-512", "maxdiffusion-flux-v5p8"}
"""Measured outside the span of what their sources leave open. Only to become fewer."""


def test_spans_over_what_sources_leave_open_have_the_measured_step() -> None:
    found = validated().statistics["spans"]
    assert found["runs"] >= 15
    assert set(found["outside"]) <= OUTSIDE


def test_every_system_runs() -> None:
    assert [(one.run.id, one.reason) for one in validated().outcomes if not one.ok] == []


EXPORTED = ("bigssl_8b", "coca", "flexivit_b", "metnet2", "mixer_b16", "siglip_b16", "t5_11b",
            "vit_22b", "wan_14b")  # fmt: skip


@pytest.mark.parametrize("name", EXPORTED)
def test_systems_without_a_public_step_can_be_compiled(name: str) -> None:
    """Their plans are written as JAX, which is what `tpusim check` compiles."""
    run = ts.read_run(PAGES / f"{name}.toml")
    assert compile(ts.export_jax(run.model, run.plan, run.pod), name, "exec")


def test_only_a_pipeline_of_two_kinds_of_layers_cannot() -> None:
    assert {file.stem for file in PAGES.glob("*.toml")} == {*EXPORTED, "parti_20b"}


def test_pages_have_the_tables_of_today() -> None:
    names = runpy.run_path(str(PAGES / "table.py"))
    tables = {"systems": "\n".join(names["lines"]())}
    tables["statistics"] = "\n".join(names["statistics"]())
    tables["open"] = "\n".join(names["open_lines"]())
    for page in (PAGES / "README.md", ROOT / "README.md"):
        text = page.read_text("utf-8")
        assert names["page_with"](text, tables, page) == text
