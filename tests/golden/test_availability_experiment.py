"""The experiment on availability: its page has today's predictions, close to what is published."""

from scripts import EXPERIMENTS, experiment

FOLDER = EXPERIMENTS / "availability"
FAR = "32x32"
"""The whole v3 pod, of which the page says why."""


def test_the_page_has_the_predictions_and_they_are_within_three_points() -> None:
    run = experiment("availability")
    page = (FOLDER / "README.md").read_text("utf-8")
    for row in run.rows():
        said, found = float(row["published"]), run.predicted(row)
        assert f"{row['slice']} | {said:.1%} | {found:.1%} |" in page
        if row["slice"] != FAR:
            assert abs(found - said) < 0.03
