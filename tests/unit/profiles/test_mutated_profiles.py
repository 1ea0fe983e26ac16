"""Profiles that are broken or hostile: each is read, or gets one sentence; none takes long."""

import re
from collections import Counter
from pathlib import Path
from time import monotonic

import pytest
from extent import thorough
from profile_mutations import mutations

import tpusim as ts
from tpusim.base.errors import FileError
from tpusim.profiles.operations import COLUMNS

UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
LONGEST_S = 10.0


@pytest.mark.thorough
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("count", "seed"), [(60, 0), thorough(2000, 1)])
def test_each_is_read_or_gets_a_sentence(count: int, seed: int, tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    for number, (name, data) in enumerate(mutations(count, seed)):
        path = tmp_path / name
        path.write_bytes(data)
        begin = monotonic()
        try:
            outcome = _read(path)
        except FileError as error:
            outcome = str(error)
            assert "\n" not in outcome
            assert len(outcome) < 400
        except Exception as error:
            raise AssertionError(f"{number}, {name}: {error!r}") from error
        assert not UNSAFE.search(outcome), (number, outcome)
        assert str(tmp_path) not in outcome, (number, outcome)
        assert "ann/" not in outcome, (number, outcome)
        assert monotonic() - begin < LONGEST_S, number
        outcomes["read" if "\n" in outcome else "refused"] += 1
    assert min(outcomes["read"], outcomes["refused"]) > count / 8


def _read(path: Path) -> str:
    """What is shown of a profile, which is checked."""
    profile = ts.read_profile(path)
    operations, steps = profile.operations, profile.steps
    assert tuple(operations) == COLUMNS
    assert len(operations) > 0
    assert len(steps) > 0
    core = operations[~operations["asynchronous"]]
    assert (core["self_ps"] >= 0).all()
    assert (operations["duration_ps"] >= operations["self_ps"]).all()
    inside = core[core["step"] >= 0]
    assert inside["self_ps"].sum() == steps["busy_ps"].sum()
    assert set(operations["device"]) == set(profile.devices)
    columns = ("instruction", "category", "program", "source", "scope", "text", "shape")
    texts = [text for name in columns for text in operations[name].cat.categories]
    assert not any(UNSAFE.search(text) or "ann/" in text for text in texts)
    profile.program()
    for program in profile.steps["program"].unique():
        assert profile.by_category(program).notna().all()
    return str(profile)
