"""The registry of `--explain`: an entry is a choice of the commands that it applies to."""

import pytest
from commands import said

from tpusim.cli.explanations import EXPLANATIONS, Explanation, explanations, find_explanation

RUN = "experiments/bert_480b/run.toml"


def test_each_command_has_the_choices_for_its_results() -> None:
    assert list(explanations()) == ["placement", "collectives", "pipeline", "lines", "passes"]
    assert list(explanations(replayed=True)) == ["collectives", "lines"]
    assert find_explanation(None) is None


def test_an_entry_is_a_choice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = Explanation(lambda result: f"devices     {result.pod.devices}", of_replays=False)
    monkeypatch.setitem(EXPLANATIONS, "devices", one)
    assert said(["simulate", RUN, "--explain", "devices"], capsys)[1].endswith("devices     2048\n")
    assert "devices" not in explanations(replayed=True)
