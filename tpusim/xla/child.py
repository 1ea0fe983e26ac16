"""HLO as plain data: asks the child process of `tpusim.xla.parser`, says what that could not do."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer
from time import monotonic
from types import TracebackType
from typing import IO, Any, Self

from tpusim.errors import FileError
from tpusim.xla import parser
from tpusim.xla.text import INSTEAD

SECONDS, SECONDS_A_MEGABYTE = 60.0, 1.0
"""How long the child may take: a file of 50 MB takes it three."""


class Parser:
    """Reads one HLO module after another in a child process, in a new one where that died.

    Use it as a context: at its end the child is gone.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._complaints: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def parse(self, data: bytes, seconds: float | None = None) -> dict[str, str]:
        """Name and printed text of HLO text, or of a serialised HloModuleProto behind a zero byte.

        seconds: after how many the child is stopped. Raises FileError: one sentence, without the
        name of the file.
        """
        allowed = SECONDS + SECONDS_A_MEGABYTE * len(data) / 1e6 if seconds is None else seconds
        answer = self._asked(data, allowed)
        if "missing" in answer:
            raise FileError(
                f"reading HLO needs jaxlib, and it cannot be used ({answer['missing']}); "
                "install what is tested: pip install 'tpusim[xla]'"
            )
        if "error" in answer:
            raise FileError(_refused(answer["error"], len(data.splitlines())))
        return answer

    def worked(self, body: str, seconds: float) -> dict[str, Any] | None:
        """The work of a kernel's body in base64, as the child says it; None where it cannot."""
        with suppress(FileError):
            answer = self._asked(parser.KERNEL + body.encode(), seconds)
            return None if answer.keys() & {"missing", "error"} else answer
        return None

    def _asked(self, data: bytes, allowed: float) -> dict[str, Any]:
        child = self._started()
        assert child.stdin is not None
        assert child.stdout is not None
        timer = Timer(allowed, child.kill)
        began = monotonic()
        timer.start()
        try:
            child.stdin.write(parser.framed(data))
            child.stdin.flush()
            answer = parser.unframed(child.stdout)  # type: ignore[arg-type]
        except OSError:
            answer = None
        finally:
            timer.cancel()
        if answer is not None:
            found: dict[str, Any] = json.loads(answer)
            return found
        late = monotonic() - began >= allowed
        raise FileError(self._died(f"did not end within {allowed:.0f} s" if late else ""))

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            self._complaints = TemporaryFile()  # noqa: SIM115
            try:
                self._child = subprocess.Popen(
                    [sys.executable or "python3", "-P", str(Path(parser.__file__))],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._complaints,
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                )
            except OSError as error:
                raise FileError(
                    f"the process that reads HLO cannot be started ({error.strerror}); "
                    "use the Python that tpusim is installed in"
                ) from error
        return self._child

    def _died(self, why: str) -> str:
        """The sentence of a child that gave no answer; it is gone after this."""
        child, complaints = self._child, self._complaints
        assert child is not None
        assert complaints is not None
        try:
            code = child.wait(5)
        except subprocess.TimeoutExpired:
            code = -9
        complaints.seek(0)
        text = complaints.read().decode("utf-8", "replace")
        self._end()
        if not why and re.search(r"bad_alloc|[Oo]ut of memory|MemoryError", text):
            return _refused("out of memory", 0)
        check = re.search(r"Check failed: [^\n]*|^\w*Error: [^\n]*", text, re.MULTILINE)
        how = why or f"ended with {_signal(code)}" + (f" ({check[0].strip()})" if check else "")
        return f"jaxlib's parser {how}, so this HLO is malformed; {INSTEAD}"

    def _end(self) -> None:
        child, complaints = self._child, self._complaints
        self._child = self._complaints = None
        if child is not None:
            child.kill()
            for stream in (child.stdin, child.stdout):
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]
            child.wait()
        if complaints is not None:
            complaints.close()


def _signal(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"code {code}"


_PLACE = re.compile(r"was parsing (\d+):\d+: error: ([^\n]*)")
_VAGUE = ("cannot parse as", "error parsing attribute", "expects opcode:")


def _refused(text: str, lines: int) -> str:
    """The sentence of an error that jaxlib raised on HLO of so many lines."""
    if "out of memory" in text:
        return (
            f"jaxlib's parser needs more than {parser.MEMORY / 2**30:.0f} GiB for this HLO; "
            "give the HLO of one program, with the layers in a scan"
        )
    places = _PLACE.findall(text)
    if not places:
        first = text.partition("\n")[0]
        return f"jaxlib cannot read this HLO: {first[:300]}; {INSTEAD}"
    line, what = next((p for p in places if not p[1].startswith(_VAGUE)), places[0])
    where = f"line {line}" + (", where the text ends" if int(line) >= lines else "")
    return f"{where}: jaxlib cannot read this HLO: {what[:300].rstrip(':')}; {INSTEAD}"
