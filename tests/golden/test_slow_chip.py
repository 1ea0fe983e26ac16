"""The experiment on slow chips: what its page says is what the simulator says today."""

from scripts import EXPERIMENTS, experiment

FOLDER = EXPERIMENTS / "slow_chip"


def test_the_page_says_what_one_slow_chip_costs() -> None:
    run = experiment("slow_chip")
    page = (FOLDER / "README.md").read_text("utf-8")
    for row in run.costs((0.8, 0.5)):
        line = (
            f"| {row.part} | {row.left:g} | {row.classes} | {row.step_s:.2f} s | "
            f"{row.longer:.1%} | {row.waits:.1%} |"
        )
        assert line in page
        if row.part == "cores":
            assert f"**{100 * row.longer:.1f}** %" in page
