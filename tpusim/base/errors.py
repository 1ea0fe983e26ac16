"""The project's exceptions, and helpers for their messages.

Every error that a user can cause is a `TpusimError`: one sentence that says what was found, where,
why it cannot be, and what to write instead. The command line prints the sentence and exits with 2;
any other exception that escapes is a defect of tpusim.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tpusim.base.close_names import abbreviated, close_names, did_you_mean, listed
from tpusim.base.foreign_names import foreign_advice
from tpusim.base.plain_text import presentable


class TpusimError(Exception):
    """An input that cannot be used; the message is for the user, and short for any input."""

    def __init__(self, text: str = "") -> None:
        super().__init__(presentable(text))


class UnitError(TpusimError, ValueError):
    """A quantity without a unit, with the wrong one, or not a finite, non-negative number."""


class HardwareError(TpusimError, ValueError):
    """An unknown chip, an illegal topology, or a broken hardware file."""


class ModelError(TpusimError, ValueError):
    """A model that cannot be built: unknown name, or dimensions that contradict each other."""


class PlanError(TpusimError, ValueError):
    """A plan that the model or the slice does not admit."""


class TrafficError(TpusimError, ValueError):
    """Traffic that no server can be sent: a rate, a length, or a trace that cannot be."""


class ServerError(TpusimError, ValueError):
    """A server that cannot serve its traffic: a contradictory policy, or too small a cache."""


class FileError(TpusimError, OSError):
    """A file that is missing, unreadable, not text, or cannot be written."""


class CompileError(TpusimError, RuntimeError):
    """A program that the TPU compiler cannot make: it does not fit, or something is missing."""


class ArgumentError(TpusimError, TypeError):
    """A call with an argument that the function does not have, one too many, or one missing."""


class InterruptedWorkError(TpusimError):
    """Work that Ctrl-C ended; its text says what was kept."""


@contextmanager
def blame(where: str) -> Iterator[None]:
    """Prefix the sentence of a TpusimError raised in the block with `where`, a file or a key."""
    try:
        yield
    except TpusimError as error:
        shown = where if where.isprintable() else repr(where)
        raise type(error)(f"{shown}: {error}") from error


def nearest(name: str, valid: Iterable[str], otherwise: str = "") -> str:
    """Return a clause that says which valid name `name` stands for, or lists all of them.

    otherwise: a clause that says where many names are listed, in place of all of them.

    >>> nearest("v5pp", ["v4", "v5e", "v5p"])
    "did you mean 'v5p'?"

    A name that other libraries have for one of them is told apart:

    >>> nearest("hidden_size", ["embed", "mlp"])
    "tpusim calls it 'embed'"
    """
    names = sorted(set(valid))
    if advice := foreign_advice(name, names):
        return advice
    if close := close_names(name, names):
        return did_you_mean(close)
    if begun := abbreviated(name, names):
        return f"write one of {listed(begun)}"
    return otherwise or (f"valid are {listed(names, name)}" if names else "none is valid here")
