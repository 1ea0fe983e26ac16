"""The front door: every name is there, whatever was imported before it."""

import subprocess
import sys

import pytest

import tpusim as ts


def test_every_name_of_the_front_door_is_there() -> None:
    assert [name for name in ts.__all__ if getattr(ts, name, None) is None] == []
    assert {*dir(ts), "__version__"} == set(ts.__all__)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "first", ["tpusim.simulation", "tpusim.report", "tpusim.cli.simulate_command"]
)
def test_a_module_of_the_same_name_does_not_hide_a_function(first: str) -> None:
    code = f"import tpusim, {first}; print(callable(tpusim.simulate))"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "True\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="tpusim has no 'simulat'; did you mean 'simulate'"):
        _ = ts.simulat
