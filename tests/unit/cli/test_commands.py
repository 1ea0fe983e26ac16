"""Commands: the garbage collector is off while one makes its result, and on afterwards."""

import gc

import pytest

from tpusim.base.collection import garbage_collector_off


def test_the_collector_rests_and_goes_on() -> None:
    assert gc.isenabled()
    with garbage_collector_off():
        assert not gc.isenabled()
        with garbage_collector_off():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_after_an_error() -> None:
    with pytest.raises(ValueError, match="wrong"), garbage_collector_off():
        raise ValueError("wrong")
    assert gc.isenabled()
