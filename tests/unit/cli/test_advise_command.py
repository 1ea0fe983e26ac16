"""`tpusim advise`: its text, its JSON, and one sentence for each mistake."""

import json
import shlex
from pathlib import Path

import pytest
from commands import SMALL, said

pytestmark = pytest.mark.usefixtures("advised")

HEADS = (
    "what bounds the step", "changes that leave the training as it is",
    "changes of the global batch, at the same number of examples",
    "what faster hardware would save",
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "run.toml"
    file.write_text(f"{SMALL}mesh = {{ fsdp = 16 }}\n", "utf-8")
    return str(file)


def test_the_advice_has_its_tables(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = said(["advise", path], capsys)
    assert (code, error) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("advice      transformer on v5e:4x4, step ")
    assert [line for line in lines if line.startswith(HEADS)] == [
        line for head in HEADS for line in lines if line.startswith(head)
    ]
    sums = [line for line in lines if line.startswith("  sum ")]
    assert [line.split()[-1] for line in sums] == ["100.0%"]
    sentences = [line for line in lines if line.endswith("(simulated)")]
    assert len(sentences) > 10
    assert not any("more (simulated)" in line for line in sentences)
    proposals = lines.index("proposals, each simulated, with what each change adds")
    assert lines[proposals + 1].startswith(" 1  saves ")
    assert proposals < lines.index(next(line for line in lines if line.startswith(HEADS)))


@pytest.mark.thorough
def test_quick_advice_tries_single_changes_only(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said(["advise", path, "--quick"], capsys)[1]
    assert "proposals" not in out
    assert "changes that leave the training as it is" in out


@pytest.mark.thorough
def test_a_printed_key_is_a_setting(
    path: str, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """What the advice prints goes to the command line as it stands."""
    out = said(["advise", path], capsys)[1]
    given = [shlex.split(line) for line in out.splitlines() if line.lstrip().startswith("--set")]
    assert len(given) > 8
    request.getfixturevalue("unadvised")
    for words in given:
        assert said(["simulate", path, *words], capsys)[0] == 0, words


@pytest.mark.thorough
def test_top_is_the_number_of_changes_of_each_kind(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said(["advise", path, "--quick", "--top", "2"], capsys)[1]
    tables = out.partition("changes that leave")[2].splitlines()
    assert sum("(simulated)" in line for line in tables) == 6
    assert sum(line.startswith("  and ") for line in out.splitlines()) == 2


def test_json_has_all_of_it(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = said(["advise", path, "--quick", "--json"], capsys)
    found = json.loads(out)
    assert (code, error) == (0, "")
    total = sum(limit["seconds"] for limit in found["limits"])
    assert total == pytest.approx(found["step_time_s"], rel=1e-12)
    for limit in found["limits"]:
        assert sum(limit["does_s"].values()) == pytest.approx(limit["seconds"], rel=1e-12)
    assert {change["kind"] for change in found["changes"]} == {"plan", "batch", "machine"}
    twice = next(each for each in found["changes"] if each["settings"] == ["plan.global_batch=64"])
    assert twice["what"] == "twice the global batch (64)"
    assert twice["saves"] == pytest.approx(1 - twice["step_time_s"] / 2 / found["step_time_s"])


def test_a_mistake_is_one_sentence(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = said(["advise", path, "--top", "0"], capsys)
    assert (code, out) == (2, "")
    assert error == "--top is 0; write the number of changes to show, from 1 up\n"
