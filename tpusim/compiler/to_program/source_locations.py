"""Source locations of instructions: a line of the user's own code, and a package's beneath it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby, takewhile
from typing import NamedTuple

from tpusim.compiler.hlo.attributes import frame_number, source_line
from tpusim.compiler.hlo.module import Frames, Instruction, SourceFrame

_PACKAGE = re.compile(r".*(?:site|dist)-packages[/\\](?=(\w+))")
_COMPILING = re.compile(
    r"[/\\]tpusim[/\\](?:xla|compiler)[/\\](?:compiling|torch_module|tf[/\\]step)\.py$"
)
"""Files that are not the user's: packages, and the callers of the compiler and of modules."""
_BRIDGE = re.compile(r"[/\\]tpusim[/\\]compiler[/\\]torch_module\.py$")
"""Calls a module of another framework, which alone is the program; what calls it is not."""
_EXPORTED_CALL = re.compile(r"[/\\]tpusim[/\\]compiler[/\\]exported_call\.py$")
"""Calls an exported program, which alone is the program, even where it has no lines."""
_BELOW = ("jax", "jaxlib", "tpusim", "torch", "torchax", "functorch")
"""Packages whose lines say no more than the name of the operation, and those through which modules
of another framework run."""
_LIFTING = re.compile(r".*(?:site|dist)-packages[/\\]flax[/\\]core[/\\]lift\.py$")
"""Runs functions of JAX on modules: its lines are those of whatever it runs."""


class SourceLocation(NamedTuple):
    """Source location of an operation; empty where it is not known.

    source: `file.py:line`, the innermost frame in the user's own code.
    library: the package's line that runs it, such as `flax/linen/linear.py:287 in Dense.__call__`.
    callers: the user's own lines that call `source`, innermost first.
    """

    source: str = ""
    library: str = ""
    callers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceLocations:
    """The stacks of a module, innermost frame first."""

    frames: Frames
    _callbacks: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_callbacks", callback_files(self.frames))

    def origin(self, instruction: Instruction, around: Instruction | None = None) -> SourceLocation:
        """Return the location of an instruction; around: the loop or call that runs it.

        The stacks of a function that is traced once end where its trace began; such a stack
        continues with that of the loop around it.
        """
        stack = self._stack(instruction)
        if around is not None and stack and all(_is_library(frame.file) for frame in stack):
            stack = (*stack, *self._stack(around))
        stack = _within_bridge(stack)
        at = _user_frame(stack)
        if at is not None:
            callers = (str(frame) for frame in stack[at + 1 :] if not _is_library(frame.file))
            return SourceLocation(str(stack[at]), self._library(stack[:at]), tuple(callers))
        traced = list(takewhile(lambda frame: not _COMPILING.search(frame.file), stack))
        if traced:
            named = (frame for frame in traced if _package(frame.file))
            return SourceLocation(str(next(named, traced[0])))
        return SourceLocation(_metadata_line(instruction))

    def _stack(self, instruction: Instruction) -> tuple[SourceFrame, ...]:
        return self.frames.get(frame_number(instruction), ())

    def _library(self, beneath: Sequence[SourceFrame]) -> str:
        """Return the most specific line: the innermost of the package that the user's line calls.

        If its file only calls back, it is the line that called it, unless that file does so too.
        """
        known = [frame for frame in beneath if _package(frame.file)]
        if not known:
            return ""
        called = [frame for frame in known if _package(frame.file) == _package(known[-1].file)]
        found = called[0]
        if found.file in self._callbacks:
            callers = (frame for frame in called if frame.file != found.file)
            caller = next(callers, found)
            found = found if caller.file in self._callbacks else caller
        where = f"{_PACKAGE.sub('', found.file)}:{found.line}"
        return f"{where} in {found.function}" if found.function else where


def name_and_line(frames: Frames, instruction: Instruction) -> str:
    """Return a label for notes: the instruction's name, and the user's line if it is known."""
    stack = _within_bridge(frames.get(frame_number(instruction), ()))
    at = _user_frame(stack)
    line = _metadata_line(instruction) if at is None else str(stack[at])
    return f"{instruction.name} ({line})" if line else instruction.name


def _user_frame(stack: Sequence[SourceFrame]) -> int | None:
    return next((at for at, frame in enumerate(stack) if not _is_library(frame.file)), None)


def _within_bridge(stack: tuple[SourceFrame, ...]) -> tuple[SourceFrame, ...]:
    """Return the frames of what a bridge calls; all where a module of torch has none."""
    for at, frame in enumerate(stack):
        if _EXPORTED_CALL.search(frame.file):
            return stack[:at]
    ends = (at for at, frame in enumerate(stack) if _BRIDGE.search(frame.file))
    return stack[: next(ends, 0)] or stack


def _metadata_line(instruction: Instruction) -> str:
    found = source_line(instruction)
    return f"{found[0].rpartition('/')[2]}:{found[1]}" if found else ""


@lru_cache(maxsize=4096)
def _package(file: str) -> str:
    """Return the package of a file; empty for the user's own code, and for JAX and bridges."""
    found = None if _LIFTING.match(file) else _PACKAGE.match(file)
    return found[1] if found and found[1] not in _BELOW else ""


def callback_files(frames: Frames) -> frozenset[str]:
    """Return the files of packages that call back the file which called them.

    They run given functions, as containers of layers and vectorising maps do, so most of a step
    runs through the same few lines of theirs.
    """
    return frozenset(
        at
        for stack in frames.values()
        for inner, at, outer in _triples([frame.file for frame in stack if _package(frame.file)])
        if inner == outer
    )


def _triples(files: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield each file that a stack passes through, between its callee and its caller."""
    passed = [file for file, _ in groupby(files)]
    return zip(passed, passed[1:], passed[2:], strict=False)


@lru_cache(maxsize=4096)
def _is_library(file: str) -> bool:
    return bool(file.startswith("<") or _PACKAGE.match(file) or _COMPILING.search(file))
