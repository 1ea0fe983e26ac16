"""The collector of garbage in cycles, which most of a command's objects outlive."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Leave garbage in cycles where it is, for a command of one result.

    Nearly all that such a command makes is needed until it ends: importing, simulating and drawing
    take a twelfth less time where nobody looks for what is not.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
