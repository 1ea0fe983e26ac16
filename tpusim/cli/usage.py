"""What the command line says of a command, an option or an argument that it does not have."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from tpusim.base.close_names import close_names
from tpusim.base.errors import nearest
from tpusim.base.foreign_names import our_name

SETTING = "--set"


def usage_fault(error: Any) -> str:
    """Return the sentence for an error of the command line, with what to write instead."""
    message = str(error.format_message())
    context = getattr(error, "ctx", None)
    if context is None:
        return f"{message} (tpusim --help shows what there is)"
    if command := re.match(r"No such command '(.*?)'", message):
        told = nearest(command[1], context.command.list_commands(context))
        return f"No such command {command[1]!r}; {told}"
    if message.startswith("No such option"):
        option = str(error.option_name)
        return f"No such option: {option}; {_instead(option, set(_options(context)))}"
    return f"{message} ({context.command_path} --help shows what there is)"


def _options(context: Any) -> Iterator[str]:
    """Yield the long options of a command."""
    for param in context.command.get_params(context):
        yield from (name for name in (*param.opts, *param.secondary_opts) if name.startswith("--"))


def _instead(option: str, known: Iterable[str]) -> str:
    """Return what to write in place of an option: another, or the setting of a run file's key."""
    if our_name(option, list(known)) or close_names(option, known):
        return nearest(option, known)
    if SETTING in known:
        from tpusim.runfile.blame import key_path

        if path := key_path(option.lstrip("-").replace("-", "_")):
            return f"it is a key of the run file; write {SETTING} {path}=VALUE"
    return nearest(option, known)
