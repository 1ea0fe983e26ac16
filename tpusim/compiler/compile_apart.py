"""Compilation in a child process, which is killed where it is late, or has made what is wanted.

Until the schedule: the TPU compiler dumps its scheduled program with buffers assigned after its
reports of memory, as the last file before code generation, which takes most of the time. In that it
adds notes to the program, such as cycle estimates and the algorithms of collectives, and changes
nothing else. Until the code: the child writes the program, as its executable prints it.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from tpusim.base.errors import CompileError
from tpusim.base.plain_text import plain
from tpusim.compiler.compile_request import DUMP, ERROR, MADE, write_request
from tpusim.compiler.compiled import Compiled, Until, load
from tpusim.compiler.hlo.parser_process import signal_name
from tpusim.compiler.memory_report import dumped_report
from tpusim.compiler.options import Option, with_dump
from tpusim.compiler.refusals import is_too_large, need_of, refusal
from tpusim.hardware import Slice

PROGRAM_FILES = "*.after_optimizations_after_buffer_assignment.txt"
"""The dump's last file before code generation; one a module."""

REFUSED_FILES = "*.oom_intermediate_module.txt"
"""What the compiler dumps of a program that needs more HBM than there is, after all its attempts:
it is scheduled, and its buffers are assigned."""

_LOOK_SECONDS = 0.05
_FATAL = re.compile(r"Check fail|\w*Error: |^F\d{4} ")
_FRAME = re.compile(r"^(?:@ |\*\*\*|\d+: |PC: |https?://|E\d{4} )")
"""Lines of a stack, as libtpu prints them after what went wrong."""

_END = b"}\n\n"
"""How the text of a whole module ends."""

_QUICKER: dict[Until, str] = {
    "schedule": ", or fewer layers outside of a scan",
    "code": ", or compile until the schedule alone, which takes seconds",
}
"""What to do instead, by how far a program was compiled."""

_LAST_WORDS = 500
"""Characters of what the compiler said last that a message repeats."""

_BOOT = (
    "import sys; sys.path[:] = sys.argv[3:]; from tpusim.compiler.compile_request import main; "
    "main(*sys.argv[1:3])"
)
"""The child finds modules where its parent does."""


def check_time_limit(seconds: object) -> None:
    """Raise CompileError unless these are seconds, or None for no limit."""
    if seconds is None:
        return
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not seconds > 0:
        raise CompileError(f"time_limit is {seconds!r}; write seconds, above 0")


def compile_apart(
    lowered: Any,
    name: str,
    pod: Slice,
    options: Mapping[str, Option],
    until: Until,
    time_limit: float | None = None,
) -> Compiled:
    """Return a lowered program as the compiler made it, without the facts of its inputs.

    until: how far the compiler runs.
    time_limit: seconds for the child process.

    A program that needs more HBM than there is is returned with its `refusal`. Raise CompileError
    if the compiler refuses the program for another reason, or is late. Neither a process nor a file
    is left behind.
    """
    start = monotonic()
    with TemporaryDirectory(prefix="tpusim-") as folder:
        request, dump = Path(folder), Path(folder) / DUMP
        dump.mkdir()
        write_request(lowered, pod, with_dump(options, str(dump)), request)
        with _child(request, until) as child:
            late = None if time_limit is None else monotonic() + time_limit
            awaited = dump if until == "schedule" else None
            if not await_program(child, awaited, late):
                raise CompileError(
                    f"{name} was not compiled for {pod} in {time_limit:g} s; give a longer time "
                    f"limit{_QUICKER[until]}"
                )
            code = child.poll()
        made = _refused(request, name, pod)
        if made is None:
            _check(request, code, name, pod)
            made = _scheduled(dump, name, pod) if until == "schedule" else load(request / MADE)
    return replace(made, name=name, data=made.data.lstrip(), seconds=monotonic() - start)


def _scheduled(dump: Path, name: str, pod: Slice) -> Compiled:
    memory, files = dumped_report(dump), _whole_programs(dump)
    if memory is None or not files:
        raise CompileError(
            f"{name} was compiled for {pod}, but this version of libtpu does not dump its "
            "schedule; write until='code'"
        )
    data = max((file.read_bytes() for file in files), key=len)
    return Compiled(name=name, data=data, memory=memory, until="schedule")


def _refused(request: Path, name: str, pod: Slice) -> Compiled | None:
    """Return the program that was too large for the compiler, if it was and is in the dump."""
    _, text = _error(request)
    memory, files = dumped_report(request / DUMP), [*(request / DUMP).glob(REFUSED_FILES)]
    if not is_too_large(text) or memory is None or not files:
        return None
    return Compiled(
        name=name,
        data=max((file.read_bytes() for file in files), key=len),
        memory=memory,
        until="schedule",
        refusal=need_of(text),
    )


def _error(request: Path) -> tuple[str, str]:
    """Return the class of the child's error and its text, both empty without one."""
    try:
        error = json.loads((request / ERROR).read_text("utf-8"))
    except FileNotFoundError:
        return "", ""
    return str(error["kind"]), str(error["text"])


@contextmanager
def _child(request: Path, until: Until) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the child in a process group of its own, which is killed at the end, whatever happens."""
    with (request / "said").open("wb") as said:
        child = subprocess.Popen(
            [sys.executable or "python3", "-c", _BOOT, str(request), until, *sys.path],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        yield child
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        assert child.stdin is not None
        child.stdin.close()


def await_program(child: "subprocess.Popen[bytes]", dump: Path | None, late: float | None) -> bool:
    """Wait until the dump is whole or the child has ended. Return False if that is too late.

    dump: None to wait for the end alone.
    late: the time by `monotonic`, or None.

    A file counts when it ends as a module does, and had
    that size before: larger ones are written in several steps.
    """
    before: dict[Path, int] = {}
    while child.poll() is None:
        sizes = {file: file.stat().st_size for file in _whole_programs(dump)} if dump else {}
        if sizes and sizes == before:
            return True
        if late is not None and monotonic() >= late:
            return False
        before = sizes
        with suppress(subprocess.TimeoutExpired):
            child.wait(_LOOK_SECONDS)
    return True


def _whole_programs(dump: Path) -> list[Path]:
    return [file for file in dump.glob(PROGRAM_FILES) if _tail(file) == _END]


def _tail(file: Path) -> bytes:
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - len(_END)))
        return stream.read()


def _check(request: Path, code: int | None, name: str, pod: Slice) -> None:
    """Raise CompileError if the child ended by an error. code: None if it was still running."""
    kind, text = _error(request)
    if kind:
        sentence = text if kind == CompileError.__name__ else refusal(kind, text, name, pod)
        first = (text.splitlines() or [""])[0][:500]
        refused = CompileError(sentence or f"{name} was not compiled for {pod}: {kind}: {first}")
        if text != sentence:
            refused.add_note(text)
        raise refused
    if code:
        said = _last_words((request / "said").read_text("utf-8", "replace"))
        raise CompileError(
            f"{name} was not compiled for {pod}: the process of the TPU compiler ended with "
            f"{signal_name(code)}{f' ({said})' if said else ''}, a crash of libtpu or a lack of "
            "memory; compile parts of the program to find the operation that it is about"
        )


def _last_words(said: str) -> str:
    """Return the line that says why a process ended, otherwise its last one, on one line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    fatal = [line for line in lines if _FATAL.search(line)]
    plain_lines = [line for line in lines if not _FRAME.match(line)]
    return plain((fatal or plain_lines or [""])[-1], _LAST_WORDS)
