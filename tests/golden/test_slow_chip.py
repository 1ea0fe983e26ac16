"""The experiment on slow chips: what its page says is what the simulator says today."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "experiments" / "slow_chip"


def test_the_page_says_what_one_slow_chip_costs() -> None:
    spec = spec_from_file_location("experiment_slow_chip", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    experiment = module_from_spec(spec)
    spec.loader.exec_module(experiment)
    page = (FOLDER / "README.md").read_text("utf-8")
    for row in experiment.costs((0.8, 0.5)):
        line = (
            f"| {row.part} | {row.left:g} | {row.classes} | {row.step_s:.2f} s | "
            f"{row.longer:.1%} | {row.waits:.1%} |"
        )
        assert line in page
        if row.part == "cores":
            assert f"**{100 * row.longer:.1f}** %" in page
