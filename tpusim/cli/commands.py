"""All commands, in the order of the help, which is that of these imports."""
# ruff: noqa: I001

from tpusim.cli import step_commands
from tpusim.cli import table_commands
from tpusim.cli import program_commands
from tpusim.cli import catalogue_commands
from tpusim.cli.app import app

__all__ = ["app", "catalogue_commands", "program_commands", "step_commands", "table_commands"]
