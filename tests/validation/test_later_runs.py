"""Measured runs that no constant was chosen from: all of them run, and how far off they are."""

from statistics import median

import once
import pytest
from bounds import LARGEST_ERROR, MEASURED
from commands import run
from inputs import FIELDS

import tpusim as ts
from tpusim.results import Fit
from tpusim.validation import Validation, measured_runs


def validated() -> Validation:
    return once.validated(MEASURED / "runs" / "later")


@pytest.mark.thorough
def test_every_run_is_simulated_and_fits() -> None:
    assert len(validated().outcomes) == 27
    assert [one.run.id for one in validated().outcomes if not one.ok] == []
    assert [one.run.id for one in validated().outcomes if one.fit is Fit.TOO_LARGE] == []


def test_errors_are_within_their_bounds() -> None:
    found = [abs(one.error) for one in validated().outcomes if one.error is not None]
    assert max(found) <= LARGEST_ERROR
    assert median(found) <= 0.1
    assert sum(found) / len(found) <= 0.14


def test_every_file_says_where_its_time_is_from() -> None:
    """And names only keys of a run file, or of an architecture, as assumed."""
    found = measured_runs(MEASURED)
    assert len(found) == 203
    for one in found:
        measured, given = one.measured, one.given
        assert given is not None, one.id
        assert measured.source, one.id
        assert measured.step_is, one.id
        assert measured.framework, one.id
        assert measured.family, one.id
        assert measured.confidence, one.id
        for key in measured.assumed:
            section, _, name = key.partition(".")
            model = section == "model" and hasattr(given.model, name)
            assert model or name in FIELDS[section], f"{one.id}: {key}"


@pytest.mark.thorough
def test_a_file_prints_its_measurement_beside_the_prediction(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = str(MEASURED / "runs" / "later" / "hy3-7x-64-pdb8.toml")
    read = ts.read_run(path)
    assert read.measured is not None
    result = ts.simulate(read.model, read.plan, read.pod)
    assert run(["simulate", path]) == 0
    told = capsys.readouterr().out.partition("\nmeasured")[2].split("\n")
    ratio = result.step_time_s / read.measured.step_s
    assert told[0].endswith(f"19.9 s (printed); predicted over measured {ratio:.3f}")
    assert "confidence A" in "".join(told)
    assert "assumed     slice.clock; model.tied_embeddings" in told
    assert run(["simulate", path, "--set", "plan.remat=minimal"]) == 0
    assert "\nmeasured" not in capsys.readouterr().out
