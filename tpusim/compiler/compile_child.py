"""Child process that compiles a request: it is ended from outside once the dump is whole.

It runs none of the user's code. Its standard input is a pipe that its parent never writes to: where
the pipe ends, or the parent is another, the child removes the folder and ends itself, so that
neither outlives a parent that was killed. An error is written to `ERROR` as JSON.
"""

import json
import os
import select
import shutil
import threading
from pathlib import Path

from tpusim.compiler.compile_request import compile_request

ERROR = "error.json"

_CHECKED_EVERY_S = 1.0


def main(folder: str) -> None:
    """Compile the request in the folder, and end the process: with code 0, or 1 for an error."""
    request = Path(folder)
    threading.Thread(target=_end_with_parent, args=(request, os.getppid()), daemon=True).start()
    try:
        compile_request(request)
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
