"""The registry of `--explain`: an entry is a choice of the commands that it applies to."""

import pytest
from commands import said

from tpusim.cli.explanations import EXPLANATIONS, Explanation, explanations, find_explanation

RUN = "experiments/bert_480b/run.toml"


def test_each_command_has_the_choices_for_its_results() -> None:
    assert list(explanations()) == [
        "placement", "collectives", "pipeline", "lines", "passes", "convolutions", "advice",
    ]  # fmt: skip
    assert list(explanations(replayed=True)) == ["collectives", "lines", "convolutions", "advice"]
    assert find_explanation(None) is None


def test_an_entry_is_a_choice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = Explanation(lambda result: f"devices     {result.pod.devices}", of_replays=False)
    monkeypatch.setitem(EXPLANATIONS, "devices", one)
    assert said(["simulate", RUN, "--explain", "devices"], capsys)[1].endswith("devices     2048\n")
    assert "devices" not in explanations(replayed=True)


def test_convolutions_of_a_step_are_listed_slowest_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All 158 of ResNet-50, single taps too; its stem's gradient wastes most of the array."""
    run = [
        "simulate",
        "tests/measured/systems/mlperf07-resnet-v4-64.toml",
        "--explain",
        "convolutions",
    ]
    text = said(run, capsys)[1]
    head, *rows = text[text.index("convolutions ") :].split("\n")
    assert head.startswith("convolutions 158 on v4, ")
    assert any(row.startswith("stem/dw  ") for row in rows)
    assert "padding wastes 62% of the array" in text
    assert said(["simulate", RUN, "--explain", "convolutions"], capsys)[2].endswith(
        "bert-480b has no convolutions to explain; leave --explain out\n"
    )
