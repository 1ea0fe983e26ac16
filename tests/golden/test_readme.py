"""The README's blocks of Python run as they stand there, and print what it says they print."""

from pathlib import Path

import pytest
from scripts import script

pytestmark = pytest.mark.usefixtures("advised")

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
COOKBOOK = script(ROOT / "docs/tools/cookbook.py")
BLOCKS = COOKBOOK.BLOCK.findall(README)
MOST_WORDS = 1200


@pytest.mark.parametrize(("block", "said"), BLOCKS, ids=range(len(BLOCKS)))
def test_a_block_prints_what_the_readme_says(block: str, said: str) -> None:
    assert COOKBOOK.shown(COOKBOOK.printed(block)) == said


def test_the_readme_has_the_ten_lines_and_the_three_jobs() -> None:
    first, *jobs = (block for block, _ in BLOCKS)
    assert len(first.strip().splitlines()) <= 10
    assert README.index(first) < README.index("\n## How wrong is it?")
    for job, call in zip(jobs, ("ts.simulate", "ts.sweep", "ts.plot.utilisation"), strict=True):
        assert call in job


def test_the_readme_is_read_in_five_minutes() -> None:
    assert len(README.split()) <= MOST_WORDS
