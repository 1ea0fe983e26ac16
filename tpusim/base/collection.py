"""The garbage collector, off for work that makes many objects and few cycles."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

COLLECTED_EVERY = 2048
"""Uses of `garbage_collector_off` from one collection of all objects to the next."""

_uses = count(1)


@contextmanager
def garbage_collector_off() -> Iterator[None]:
    """Turn the collection of cycles off; objects without cycles are freed as ever.

    The collector reads all that lives again and again while new objects are made. Only for work
    that is short, or after which the process ends: what has cycles is kept until it is over. What
    was made then counts as old, so that the next collection of young objects does not read it, and
    old objects are collected now and then. A program that has frozen objects of its own keeps them
    so.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if next(_uses) % COLLECTED_EVERY == 0:
                gc.collect()
            elif not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


@contextmanager
def garbage_collector_on() -> Iterator[None]:
    """Turn the collection of cycles on, for long work within work that is short as a rule."""
    was_enabled = gc.isenabled()
    gc.enable()
    try:
        yield
    finally:
        if not was_enabled:
            gc.disable()
