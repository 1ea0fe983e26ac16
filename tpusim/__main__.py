"""The command `tpusim`, which is `python -m tpusim` too."""

import os
import signal

INTERRUPTED = b"error: interrupted before any work began\n"


def start() -> None:
    """Run the command line and exit. Ctrl-C while it is loaded is a sentence and code 130 too."""
    mine = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if mine:
        signal.signal(signal.SIGINT, _end)
    from tpusim.cli import main

    if mine:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main()


def _end(*_: object) -> None:
    os.write(2, INTERRUPTED)
    os._exit(130)


if __name__ == "__main__":
    start()
