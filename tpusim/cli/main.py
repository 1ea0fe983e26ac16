"""The entry point: exit codes, and one sentence per error.

0: an answer, including that a plan does not fit. 2: a mistake of the user's. 1: a defect of ours.
3: a sweep in which every plan of a kind is refused. 4: a check of a plan that fits, which the
compiler refuses, or of one that does not, which it makes fit. 130: Ctrl-C, as shells have it.
"""

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from shutil import get_terminal_size
from signal import SIG_IGN, SIGINT, signal
from typing import Any, NoReturn

import typer

from tpusim.base.collection import garbage_collector_off
from tpusim.base.errors import InterruptedWorkError, TpusimError
from tpusim.base.plain_text import presentable, visible_lines
from tpusim.base.text_width import printed_on
from tpusim.cli.app import INTERRUPTED, app
from tpusim.cli.usage import usage_fault

DEBUG = "TPUSIM_DEBUG"
INTERRUPTION = "interrupted; what was compiling or simulating has ended"

for _commands in ("step", "table", "program", "profile", "catalogue"):  # the order of the help
    import_module(f"tpusim.cli.{_commands}_commands")


def main() -> NoReturn:
    """Run the command line and exit.

    The collector of cycles is off, unless a long command turns it on, and at the end it leaves
    alone what lives: the process ends, and to read all of it once more finds nothing of use. Once
    the answer is printed, Ctrl-C changes nothing.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    with garbage_collector_off():
        try:
            code = run(sys.argv[1:])
            signal(SIGINT, SIG_IGN)
        except KeyboardInterrupt:  # while the answer was printed
            code = _fail(INTERRUPTED, INTERRUPTION)
        gc.freeze()
    if code == INTERRUPTED:
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)  # Python would end itself by the signal where this interrupted an `exec`
    sys.exit(code)


@cache
def _command() -> Any:
    """Return the application as a command, which takes as long to make as a short one to run."""
    return typer.main.get_command(app)


def run(arguments: Sequence[str]) -> int:
    """Run a command, print its answer, and return the exit code.

    A command returns its text, or its text and its exit code.
    """
    try:
        with printed_on(terminal_columns()):
            answer = _command()(
                args=list(arguments) or ["--help"], prog_name="tpusim", standalone_mode=False
            )
    except InterruptedWorkError as error:
        return _fail(INTERRUPTED, str(error))
    except KeyboardInterrupt:
        return _fail(INTERRUPTED, INTERRUPTION)
    except TpusimError as error:
        return _fail(2, str(error))
    except typer.TyperException as error:
        return _fail(2, usage_fault(error))
    except Exception as error:
        if DEBUG in os.environ:
            raise
        return _fail(1, f"a defect of tpusim, please report it: {error!r}; {DEBUG}=1 shows more")
    if isinstance(answer, tuple):
        text, code = answer
        return _print_answer(text) or int(code)
    if isinstance(answer, int) and answer == INTERRUPTED:
        return _fail(INTERRUPTED, INTERRUPTION)
    if isinstance(answer, str):
        return _print_answer(answer)
    return int(answer)


def terminal_columns() -> int | None:
    """Return the columns of the terminal, or of COLUMNS; None where a file or a pipe is written."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return get_terminal_size().columns
    return None


def _fail(code: int, message: str) -> int:
    """Print a sentence on one line of stderr."""
    print(f"error: {presentable(' '.join(message.split()))}", file=sys.stderr)
    return code


def _print_answer(text: str) -> int:
    """Print an answer unless it is empty; stop quietly if the reader has closed the pipe.

    What a terminal would act on is not printed, whoever wrote it.
    """
    if not text:
        return 0
    try:
        print(visible_lines(text), flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            return _fail(2, f"the answer cannot be printed: {error.strerror}")
    return 0
