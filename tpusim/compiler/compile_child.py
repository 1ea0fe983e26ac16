"""Child process that compiles a request: to the end, or ended from outside once the dump is whole.

It runs none of the user's code. Its standard input is a pipe that its parent never writes to: where
the pipe ends, or the parent is another, the child removes the folder and ends itself, so that
neither outlives a parent that was killed. An error is written to `ERROR` as JSON, and a program
that was compiled to the end to `MADE`.
"""

import json
import os
import select
import shutil
import threading
from pathlib import Path

from tpusim.compiler.compile_request import DUMP, compile_request
from tpusim.compiler.compiled import Compiled
from tpusim.compiler.memory_report import memory_report

ERROR, MADE = "error.json", "made.hlo"

_CHECKED_EVERY_S = 1.0


def main(folder: str, until: str) -> None:
    """Compile the request in the folder, and end the process: with code 0, or 1 for an error.

    until: `code` to write the program too.
    """
    request = Path(folder)
    threading.Thread(target=_end_with_parent, args=(request, os.getppid()), daemon=True).start()
    try:
        text, stats = compile_request(request)
        if until == "code":
            memory = memory_report(request / DUMP, stats)
            Compiled(name=DUMP, data=text().encode(), memory=memory).save(request / MADE)
    except Exception as error:
        said = {"kind": type(error).__name__, "text": str(error)}
        (request / ERROR).write_text(json.dumps(said), "utf-8")
        os._exit(1)
    os._exit(0)


def _end_with_parent(folder: Path, parent: int) -> None:
    while os.getppid() == parent:
        ended, _, _ = select.select([0], [], [], _CHECKED_EVERY_S)
        if ended and not os.read(0, 1):
            break
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)  # what the compiler wrote meanwhile
    os._exit(2)
