"""Parameters and FLOPs of the named models, beside those that are published."""

import runpy
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tpusim import models
from tpusim.models import ARCHITECTURES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments/systems"


@cache
def script() -> Mapping[str, Any]:
    """The names of the script that writes the table."""
    return runpy.run_path(str(FOLDER / "counts.py"))


@cache
def counts() -> Mapping[str, Any]:
    return {one.name: one for one in script()["counts"]()}


def test_what_is_more_than_1_percent_off_has_a_reason_and_nothing_else() -> None:
    unlike = [one.name for one in counts().values() if one.differs != bool(one.reason)]
    assert unlike == []


def test_what_is_published_has_a_source() -> None:
    unlike = [one.name for one in counts().values() if any(one.said) != bool(one.source)]
    assert unlike == []


def test_all_named_models_but_language_models_are_there() -> None:
    others = (kind for name, kind in ARCHITECTURES.items() if name != "transformer")
    assert {name for kind in others for name in models.names(kind)} <= set(counts())
    unnamed = {name for name, kind in ARCHITECTURES.items() if not models.names(kind)}
    assert unnamed <= set(counts())
    assert {"lamda-137b", "palm-540b", "bert-480b", "lingvo-128b"} <= set(counts())


def test_the_page_of_models_says_how_many_agree() -> None:
    published = [one for one in counts().values() if any(one.said)]
    near = sum(not one.differs for one in published)
    page = (ROOT / "docs/models.md").read_text("utf-8")
    assert f"Of {len(published)} models with published counts, {near} are within 1 %" in page


def test_multiply_accumulates_are_two_flops() -> None:
    one = counts()["resnet-50"]
    assert one.said[1] == "4.089 GMAC"
    assert one.published[1] == pytest.approx(2 * 4.089e9)
    assert one.flops == pytest.approx(2 * 4.089e9, rel=0.001)


@pytest.mark.parametrize(
    ("text", "number"), [("86M", 86e6), ("8.63B", 8.63e9), ("86,567,656", 86_567_656), ("", None)]
)
def test_counts_of_sources_are_read(text: str, number: float | None) -> None:
    found = script()["_number"](text, {"M": 1e6, "B": 1e9}, "")
    assert found == (number if number is None else pytest.approx(number))


@pytest.mark.thorough
def test_the_page_has_the_table_of_today() -> None:
    page = ROOT / "experiments/systems/counts.md"
    text = page.read_text("utf-8")
    tables = {"counts": "\n".join(script()["lines"]())}
    page_with = runpy.run_path(str(FOLDER / "table.py"))["page_with"]
    assert page_with(text, tables) == text
