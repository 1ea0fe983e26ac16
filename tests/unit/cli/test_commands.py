"""Commands: the collector is off in short ones and at the end, on in long ones and afterwards."""

import gc
from contextlib import AbstractContextManager

import pytest
from commands import run

from tpusim.base import TpusimError
from tpusim.base.collection import garbage_collector_off, garbage_collector_on


def test_the_collector_rests_and_goes_on() -> None:
    assert gc.isenabled()
    with garbage_collector_off():
        assert not gc.isenabled()
        with garbage_collector_off():
            pass
        assert not gc.isenabled()
        with garbage_collector_on():
            assert gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with garbage_collector_on():
        pass
    assert gc.isenabled()


@pytest.mark.parametrize("outer", [garbage_collector_off(), garbage_collector_on()])
def test_it_goes_on_after_an_error(outer: AbstractContextManager[None]) -> None:
    with pytest.raises(ValueError, match="wrong"), outer:
        raise ValueError("wrong")
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("command", "function", "collects"),
    [
        ("simulate", "cli.simulate_command.simulate_run_file", False),
        ("sweep", "runfile.read_space", True),
        ("search", "runfile.read_search", True),
        ("scaling", "runfile.read_one_plan", True),
        ("validate", "cli.validate_command.validate_runs", True),
        ("calibrate", "cli.calibrate_command.calibrate_on", True),
        ("check", "runfile.read_step", True),
    ],
)
def test_only_long_commands_collect(
    command: str, function: str, collects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def work(*_: object, **__: object) -> None:
        seen.append(gc.isenabled())
        raise TpusimError("seen")

    monkeypatch.setattr(f"tpusim.{function}", work)
    monkeypatch.setattr("tpusim.cli.simulate_command.read_arguments", lambda *_, **__: None)
    with garbage_collector_off():
        run([command, "run.toml"])
    assert seen == [collects]
