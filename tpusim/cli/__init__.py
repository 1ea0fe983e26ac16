"""The command line: parse, call, print."""

from tpusim.cli.main import main

__all__ = ["main"]
