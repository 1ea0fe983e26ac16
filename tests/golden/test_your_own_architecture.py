"""The worked example of docs/your_own_architecture.md runs, and is sharded as the page says."""

import re
from inspect import isfunction
from pathlib import Path
from typing import Any

import pytest

import tpusim as ts
from tpusim.models import pieces

PAGE = (Path(__file__).parents[2] / "docs/your_own_architecture.md").read_text("utf-8")
CODE = "".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.S | re.M))


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    found: dict[str, Any] = {"__name__": "example"}
    exec(compile(CODE, "your_own_architecture.md", "exec"), found)
    return found


def test_the_model_is_what_its_lines_say(names: dict[str, Any]) -> None:
    image = 24 * (4 * 1024 * 16 * 64 + 2 * 1024 * 4096 + 2 * 1024) + 588 * 1024
    heads = 16 * 128
    cross = 2 * 2048 * heads + 2 * 1024 * heads + 2048
    text = 24 * (cross + 4 * 2048 * heads + 2 * 2048 * 8192 + 2 * 2048) + 2048
    assert names["Captioner"]().parameter_count == image + text + 32000 * 2048


def test_a_part_has_rules_of_its_own(names: dict[str, Any]) -> None:
    """Whole heads of the image encoder: the decoder's matmuls stay as they are."""
    model, plan, pod = names["Captioner"](), names["plan"], ts.Slice("v5e", "4x8")
    rules = {key: [] for key in ("image.act_heads", "image.heads", "image.act_mlp", "image.mlp")}
    both = ts.simulate(model, plan, pod)
    apart = ts.simulate(model, plan.replace(rules=rules), pod)
    assert apart.flops.model == both.flops.model
    assert apart.flops.redundant > both.flops.redundant


def test_the_page_names_pieces_that_exist() -> None:
    rows = [line for line in PAGE.split("\n") if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == {name for name, piece in vars(pieces).items() if isfunction(piece)}
