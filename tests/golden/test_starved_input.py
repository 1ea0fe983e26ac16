"""The experiment on starved input: what its page says is what the simulator says today."""

from scripts import EXPERIMENTS, experiment

FOLDER = EXPERIMENTS / "starved_input"


def test_the_page_says_which_runs_starve() -> None:
    """As their sources do: v3 is fed by 96 threads, and v2 starved by a split on one thread."""
    run = experiment("starved_input")
    page = (FOLDER / "README.md").read_text("utf-8")
    found = list(run.rows())
    for row in found:
        assert str(row) in page
    by_name = {row.what: row for row in found}
    fed, few = (by_name[f"v3, 4 hosts, {threads} threads each"] for threads in (96, 8))
    assert not fed.starved_by
    assert f"**{fed.images / few.images:.1f}** times" in page
    split, free = found[-2:]
    assert split.starved_by == "batch"
    assert free.images > run.V2_IMAGES > split.images
    needed = run.V3_IMAGES / 4 * 2.1e-3
    assert f"{needed:.1f} of the 96 vCPUs" in page
    assert needed < 96
