"""The experiment on broken switches: what its page says is what the simulator says today."""

import pytest
from scripts import EXPERIMENTS, experiment

PAGE = (EXPERIMENTS / "broken_links" / "README.md").read_text("utf-8")


@pytest.mark.thorough
def test_the_page_has_the_all_to_alls() -> None:
    worst = 0.0
    for shape, published, found in experiment("broken_links").exchanges():
        row = " | ".join(f"{ratio:.3f}" for ratio in found)
        assert f"| {shape} | {published:.3f} | {row} |" in PAGE
        worst = max(worst, *(abs(ratio / published - 1) for ratio in found))
    assert f"**{worst:.1%}**".replace("%**", "** %") in PAGE


@pytest.mark.thorough
def test_the_page_has_the_steps_of_the_smallest_models() -> None:
    for case in experiment("broken_links").cases("BERT-1", quick=True):
        slower = " | ".join(f"{each:.1%}" for each in case.slower)
        assert f"| {case.tokens:,} | {case.exposed:.1%} | {slower} |" in PAGE
