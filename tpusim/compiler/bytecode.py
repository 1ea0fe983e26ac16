"""Bytecode of MLIR, whose reader ends its process on some of what is no bytecode."""

import re
import subprocess
import sys

from tpusim.base.errors import CompileError
from tpusim.base.plain_text import plain
from tpusim.compiler.hlo.parser_process import signal_name

_READ = (
    "import sys; sys.path[:] = sys.argv[1:]\n"
    "from contextlib import suppress\n"
    "from tpusim.compiler.exported import read_module\n"
    "with suppress(Exception): read_module(sys.stdin.buffer.read())"
)
_FATAL = re.compile(r"^LLVM ERROR: .*|Check failed: .*", re.MULTILINE)


def check_bytecode(data: bytes) -> None:
    """Raise CompileError for bytecode at which MLIR ends the process that reads it.

    A process of its own tries it, in about a second.
    """
    command = [sys.executable or "python3", "-c", _READ, *sys.path]
    made = subprocess.run(command, input=data, capture_output=True, check=False)
    if made.returncode < 0:
        said = _FATAL.search(made.stderr.decode("utf-8", "replace"))
        why = f" ({plain(said[0])})" if said else ""
        raise CompileError(
            f"this is no StableHLO that this version of JAX reads: it ends with "
            f"{signal_name(made.returncode)}{why}; export the program again"
        )
