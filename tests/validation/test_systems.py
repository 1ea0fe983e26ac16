"""Measured systems of many kinds: each run file runs, and how far off it may be."""

from pathlib import Path
from statistics import median

import once
import pytest
from scripts import script

import tpusim as ts
from tpusim.validation import Validation

ROOT = Path(__file__).parents[2]
SYSTEMS = ROOT / "tests/measured/systems"
PAGES = ROOT / "experiments/systems"

BOUNDS = {
    ("lingvo", "palm", "lamda", "pathways-3b", "shmap"): 0.08,
    ("gnmt",): 0.24,
    ("-sd-",): 0.09,
    ("vit",): 0.09,
    ("ssd",): 0.2,
    ("resnet", "r50"): 0.05,
    ("transformer", "t5"): 0.07,
    ("gshard", "switch-switch"): 0.26,
    ("bert",): 0.1,
    ("maskrcnn",): 0.6,
}
"""For words of the names of a kind, the largest median of its absolute errors. Only to fall, unless
a measurement is corrected: without their evaluations, GNMT on 256 chips took 8.9 ms a step instead
of 21 ms, and Mask R-CNN on 256 chips, whose script splits each image over four, 16.8 instead of 25.
SSD's rose from 0.16 to 0.2 when convolutions got the rates of a profile, with which ResNet's fell
from 0.25 to 0.05. Mask R-CNN's rose by 0.1 when its regions became those of its sources, which read
four positions a cell in v0.6, where the model had read 16: its logged blocks hold parts of
evaluations, so they are no lower bounds.
"""


def validated() -> Validation:
    return once.validated(SYSTEMS)


def errors() -> dict[str, float]:
    return {one.run.id: one.error for one in validated().outcomes if one.error is not None}


@pytest.mark.parametrize("words", BOUNDS, ids=lambda words: words[0])
def test_errors_of_a_kind_are_within_their_bound(words: tuple[str, ...]) -> None:
    found = [error for name, error in errors().items() if any(word in name for word in words)]
    assert found
    assert median(map(abs, found)) <= BOUNDS[words]


def test_all_systems_together() -> None:
    """The mean holds two corrected measurements: GNMT and Mask R-CNN on 256 chips."""
    found = sorted(abs(error) for error in errors().values())
    assert len(found) == 53
    assert median(found) <= 0.12
    assert sum(found) / len(found) <= 0.18
    assert sum(found[:-2]) / len(found[:-2]) <= 0.155


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


def test_the_page_has_the_tables_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    page_of = script(PAGES / "table.py")
    monkeypatch.setattr(page_of, "validated", validated)
    tables = {"systems": "\n".join(page_of.lines()), "open": "\n".join(page_of.open_lines())}
    tables["statistics"] = "\n".join(page_of.statistics())
    text = page_of.PAGE.read_text("utf-8")
    assert "| Dense encoder 480B |" in text
    assert page_of.page_with(text, tables) == text
