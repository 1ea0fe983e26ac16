"""Whose code an instruction comes from: a line of the user's own, and a package's beneath it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from tpusim.xla.attributes import frame_number, source
from tpusim.xla.module import Frame, Frames, Instruction

_PACKAGE = re.compile(r".*(?:site|dist)-packages[/\\](?=(\w+))")
_COMPILING = re.compile(r"[/\\]tpusim[/\\]xla[/\\]compiling\.py$")
"""Files that are not the user's: packages, and what calls the compiler."""
_BELOW = ("jax", "jaxlib", "tpusim")
"""Packages whose lines say no more than the name of the operation does."""


class CodeOrigin(NamedTuple):
    """Where an operation comes from; both are empty where it is not known.

    source: `file.py:line`, the innermost place in the user's own code. library: the line of the
    package that runs it for that place, such as `flax/linen/linear.py:287 in Dense.__call__`.
    """

    source: str = ""
    library: str = ""


@dataclass(frozen=True, slots=True)
class Places:
    """The stacks of a module, the innermost frame first."""

    frames: Frames
    _handing: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_handing", handing_on(self.frames))

    def origin(self, instruction: Instruction, around: Instruction | None = None) -> CodeOrigin:
        """Where an instruction comes from; around: the loop or call that runs it.

        A function that is traced once has stacks that end where its trace began; the rest of such
        a stack is that of the loop around it.
        """
        stack = self._stack(instruction)
        if around is not None and stack and all(map(_foreign, stack)):
            stack = (*stack, *self._stack(around))
        at = _own(stack)
        if at is not None:
            return CodeOrigin(str(stack[at]), self._library(stack[:at]))
        if stack:
            return CodeOrigin(str(stack[0]))
        return CodeOrigin(_without_stack(instruction))

    def _stack(self, instruction: Instruction) -> tuple[Frame, ...]:
        return self.frames.get(frame_number(instruction), ())

    def _library(self, beneath: Sequence[Frame]) -> str:
        """The line that says most: the innermost of the package that the user's line calls.

        Where its file hands on what it is given, it is the line that gave it, if that one does not.
        """
        known = [frame for frame in beneath if package(frame)]
        if not known:
            return ""
        called = [frame for frame in known if package(frame) == package(known[-1])]
        found = called[0]
        if found.file in self._handing:
            givers = (frame for frame in called if frame.file != found.file)
            giver = next(givers, found)
            found = found if giver.file in self._handing else giver
        where = f"{_PACKAGE.sub('', found.file)}:{found.line}"
        return f"{where} in {found.function}" if found.function else where


def name_and_line(frames: Frames, instruction: Instruction) -> str:
    """What a note calls an instruction: its name, and the user's line where that is known."""
    stack = frames.get(frame_number(instruction), ())
    at = _own(stack)
    line = _without_stack(instruction) if at is None else str(stack[at])
    return f"{instruction.name} ({line})" if line else instruction.name


def _own(stack: Sequence[Frame]) -> int | None:
    """The place in a stack of the innermost frame in the user's own code."""
    return next((at for at, frame in enumerate(stack) if not _foreign(frame)), None)


def _without_stack(instruction: Instruction) -> str:
    """The line that its own metadata names, as older HLO has it."""
    found = source(instruction)
    return f"{found[0].rpartition('/')[2]}:{found[1]}" if found else ""


def package(frame: Frame) -> str:
    """The package that a place belongs to; nothing where it is the user's own, or JAX's."""
    return _package(frame.file)


@lru_cache(maxsize=4096)
def _package(file: str) -> str:
    found = _PACKAGE.match(file)
    return found[1] if found and found[1] not in _BELOW else ""


def handing_on(frames: Frames) -> frozenset[str]:
    """Files of packages that call back the file which called them.

    They run what they are given, as containers of layers and vectorising maps do, so that most of a
    step runs through the same few lines of theirs.
    """
    return frozenset(
        at
        for stack in frames.values()
        for inner, at, outer in _threes([frame.file for frame in stack if package(frame)])
        if inner == outer
    )


def _threes(files: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Each file that a stack passes through, between what it calls and what calls it."""
    passed = [file for file, _ in groupby(files)]
    return zip(passed, passed[1:], passed[2:], strict=False)


def _foreign(frame: Frame) -> bool:
    return _of_others(frame.file)


@lru_cache(maxsize=4096)
def _of_others(file: str) -> bool:
    return bool(file.startswith("<") or _PACKAGE.match(file) or _COMPILING.search(file))
