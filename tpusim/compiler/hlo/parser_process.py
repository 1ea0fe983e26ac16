"""The child process that runs `parser.py`: HLO as plain data, or the reason why there is none."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer
from time import monotonic
from typing import IO, Any, Self

from tpusim.base.errors import FileError
from tpusim.base.shown_value import cut
from tpusim.compiler.hlo import parser
from tpusim.compiler.hlo.module_text import HLO_ADVICE

PARSE_SECONDS, PARSE_SECONDS_PER_MEGABYTE = 60.0, 1.0
"""Time limit of the child; a file of 50 MB takes it three seconds."""


class HloParser:
    """Parses HLO modules in a child process, which is restarted after it dies.

    Use it as a context manager, which ends the child.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def parse(self, data: bytes, seconds: float | None = None) -> dict[str, str]:
        """Return name and printed text of a module.

        data: HLO text, or a serialised HloModuleProto after a zero byte.
        seconds: time limit in place of the usual one.

        Raise FileError with one sentence that does not name the file.
        """
        if seconds is None:
            seconds = PARSE_SECONDS + PARSE_SECONDS_PER_MEGABYTE * len(data) / 1e6
        answer = self._request(data, seconds)
        if "missing" in answer:
            raise FileError(
                f"reading HLO needs jaxlib, and it cannot be used ({answer['missing']}); "
                "install what is tested: pip install 'tpusim[xla]'"
            )
        if "error" in answer:
            raise FileError(_parse_error(answer["error"], data.splitlines()))
        return answer

    def parse_kernel(self, body: str, seconds: float) -> dict[str, Any] | None:
        """Return the work of a kernel's base64 body, as `mosaic.py` reports it, or None."""
        with suppress(FileError):
            answer = self._request(parser.KERNEL_PREFIX + body.encode(), seconds)
            return None if answer.keys() & {"missing", "error"} else answer
        return None

    def _request(self, data: bytes, allowed: float) -> dict[str, Any]:
        child = self._start()
        assert child.stdin is not None
        assert child.stdout is not None
        timer = Timer(allowed, child.kill)
        began = monotonic()
        timer.start()
        try:
            child.stdin.write(parser.pack_message(data))
            child.stdin.flush()
            answer = parser.read_message(child.stdout)  # type: ignore[arg-type]
        except OSError:
            answer = None
        finally:
            timer.cancel()
        if answer is not None:
            found: dict[str, Any] = json.loads(answer)
            return found
        late = monotonic() - began >= allowed
        raise FileError(self._failure(f"did not finish within {allowed:.0f} s" if late else ""))

    def _start(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            self._errors = TemporaryFile()  # noqa: SIM115
            try:
                self._child = subprocess.Popen(
                    [sys.executable or "python3", "-P", str(Path(parser.__file__))],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                )
            except OSError as error:
                raise FileError(
                    f"the process that reads HLO cannot be started ({error.strerror}); "
                    "use the Python that tpusim is installed in"
                ) from error
        return self._child

    def _failure(self, why: str) -> str:
        """End a child that gave no answer, and return the sentence that says why."""
        child, errors = self._child, self._errors
        assert child is not None
        assert errors is not None
        try:
            code = child.wait(5)
        except subprocess.TimeoutExpired:
            code = -9
        errors.seek(0)
        text = errors.read().decode("utf-8", "replace")
        self._end()
        if not why and re.search(r"bad_alloc|[Oo]ut of memory|MemoryError", text):
            return _parse_error("out of memory", [])
        check = re.search(r"Check failed: [^\n]*|^\w*Error: [^\n]*", text, re.MULTILINE)
        cause = f" ({check[0].strip()})" if check else ""
        how = why or f"ended with {signal_name(code)}{cause}"
        return f"jaxlib's parser {how}, so this HLO is malformed; {HLO_ADVICE}"

    def _end(self) -> None:
        child, errors = self._child, self._errors
        self._child = self._errors = None
        if child is not None:
            child.kill()
            for stream in (child.stdin, child.stdout):
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]
            child.wait()
        if errors is not None:
            errors.close()


def signal_name(code: int) -> str:
    """Return the signal that ended a process, or its exit code, as a sentence names it."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"code {code}"


LONGEST_ERROR = 160
"""Characters of what jaxlib says of HLO that it cannot read."""

_ERROR_LINE = re.compile(r"was parsing (\d+):\d+: error: ([^\n]*)")
_NEWER_SYNTAX = re.compile(rb"%[\w.-]+#\d|replica_groups=mesh\[")
"""Elements of tuples as operands, and groups by axes of a mesh: from jaxlib 0.11 on."""

_VAGUE_ERRORS = ("cannot parse as", "error parsing attribute", "expects opcode:")


def _parse_error(text: str, lines: Sequence[bytes]) -> str:
    """Return the sentence for an error that jaxlib raised on the lines of HLO."""
    if "out of memory" in text:
        return (
            f"jaxlib's parser needs more than {parser.MAX_MEMORY / 2**30:.0f} GiB for this HLO; "
            "give the HLO of one program, with the layers in a scan"
        )
    places = _ERROR_LINE.findall(text)
    if not places:
        first = text.partition("\n")[0]
        return f"jaxlib cannot read this HLO: {cut(first, LONGEST_ERROR)}; {HLO_ADVICE}"
    line, what = next((p for p in places if not p[1].startswith(_VAGUE_ERRORS)), places[0])
    if _NEWER_SYNTAX.search(b"".join(lines[int(line) - 1 : int(line)])):
        own = version("jaxlib")
        return (
            f"line {line}: this HLO was printed by a newer jaxlib than {own}, which cannot read "
            f"it; compile the program with jax {own}"
        )
    where = f"line {line}" + (", where the text ends" if int(line) >= len(lines) else "")
    said = cut(what.rstrip(":"), LONGEST_ERROR)
    return f"{where}: jaxlib cannot read this HLO: {said}; {HLO_ADVICE}"
