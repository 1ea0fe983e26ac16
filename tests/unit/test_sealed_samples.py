"""The sample about HBM of plan_vs_compiler: what is held out, sealed and opened once."""

import json
from pathlib import Path
from types import ModuleType

import pytest
from plan_vs_compiler import module


@pytest.fixture
def opening() -> ModuleType:
    return module("open_held_out")


@pytest.mark.parametrize("name", ["memory", "fresh"])
def test_a_third_of_each_kind_is_held_out(name: str) -> None:
    sample = module(name).SAMPLE
    numbers = list(sample.numbers())
    held = [number for number in numbers if sample.is_held_out(number)]
    kinds = [number // 100 for number in held]
    assert len(held) * 3 == len(numbers) == 9 * len(sample.kinds)
    assert {kinds.count(kind) for kind in kinds} == {3}


@pytest.mark.parametrize("name", ["memory", "fresh"])
def test_sealed_and_open_rows_are_apart(opening: ModuleType, name: str) -> None:
    """Rows that are held out are to be learnt from once their round was opened."""
    rows, sample = module("sealed_rows"), module(name).SAMPLE
    opened = {row["number"] for each in opening.opened(sample) for row in each["rows"]}
    found = {row["number"] for row in rows.open_rows(sample)}
    assert opened <= found
    assert not any(sample.is_held_out(number) for number in found - opened)
    assert rows.unsealed(rows.sealed({"number": 7})) == {"number": 7}


def test_errors_and_verdicts_by_kind(opening: ModuleType) -> None:
    row = {"kind": "Muon", "plan": 90, "before": 50, "program": 100, "usable": 95, "refused": True}
    rows = [row, row | {"plan": 100, "refused": False, "program": 80}]
    found = opening.by_kind(rows, ["Muon", "int8"])
    assert found["Muon"]["median"] == pytest.approx(0.175)
    assert found["Muon"]["wrong"] == 2
    assert found["all"]["signed"] == pytest.approx(0.075)
    assert found["int8"] == {"number": 0}


def test_a_round_is_opened_once(
    opening: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record has the date, the commit and all numbers; another round is another third."""
    sample = module("memory").SAMPLE
    monkeypatch.setattr(type(sample), "openings", tmp_path / "openings.json")
    opening.record(sample, [{"number": 10000}], {"step": {}}, {"libtpu": "0"})
    (kept,) = json.loads(sample.openings.read_text())
    assert {"round", "date", "commit", "versions", "step", "rows"} <= kept.keys()
    monkeypatch.setattr("sys.argv", ["open_held_out.py"])
    with pytest.raises(SystemExit, match="opened already"):
        opening.main()
