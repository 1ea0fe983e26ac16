"""The experiment on stragglers: its page says what the simulator says, and what was published."""

from scripts import EXPERIMENTS, experiment


def test_the_page_says_what_each_cause_costs() -> None:
    run = experiment("stragglers")
    page = (EXPERIMENTS / "stragglers" / "README.md").read_text("utf-8")
    found = run.uneven_stages()
    for line in run.lines(found):
        assert line in page
    assert f"takes **{found.last:.2f}** times" in page
    assert f"costs **{100 * (found.factor - 1):.1f}** %" in page


def test_the_last_stage_is_as_in_the_published_traces() -> None:
    """Lin et al.: forward 2.07 and backward 1.41 times the others; mending it recovers half."""
    found = experiment("stragglers").uneven_stages()
    published = (2.07 + 2 * 1.41) / 3
    assert abs(found.last / published - 1) < 0.05
    assert found.factor > 1.1
    assert found.recovered >= 0.5
    assert abs(found.off) < 0.005
