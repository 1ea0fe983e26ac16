"""Garbage is left alone while a command makes its one result, and collected again afterwards."""

import gc

import pytest

from tpusim.cli.collecting import uncollected


def test_the_collector_rests_and_goes_on() -> None:
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_after_an_error() -> None:
    with pytest.raises(ValueError, match="wrong"), uncollected():
        raise ValueError("wrong")
    assert gc.isenabled()
