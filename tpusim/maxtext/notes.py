"""What a config asks for that is not modelled, and the keys that are ignored."""

from collections.abc import Iterator

from tpusim.errors import nearest
from tpusim.maxtext.config import Config, named
from tpusim.maxtext.file import cut, shown
from tpusim.maxtext.keys import LEFT_OUT, REFUSED, SCANNED, asks, ignored
from tpusim.maxtext.tables import defaults

FEW = 30
"""Keys that are listed one by one; of more, how many there are."""


def check_refused(config: Config) -> None:
    """Raise for a key that asks for what cannot be left out."""
    for key, what in REFUSED.items():
        value = config.table.get(key)
        if asks(value):
            raise config.fault(f"{key} is {shown(value)}: {what} cannot be simulated")


def notes_of(config: Config, *, verbose: bool = False) -> tuple[str, ...]:
    """A sentence for each thing that is taken otherwise than the config has it."""
    return tuple(_notes(config, verbose))


def _notes(config: Config, verbose: bool) -> Iterator[str]:
    for key, what in LEFT_OUT.items():
        value = config.table.get(key)
        if asks(value, key):
            yield f"not modelled: {what} ({key} = {shown(value)})"
    if not config.flag(SCANNED):
        yield "the layers are taken as a scan (scan_layers = false)"
    if config.replaced:
        keys = ", ".join(config.replaced)
        yield f"model_name {config.text('model_name')} sets {keys} in the file's place"
    unread = tuple(key for key in config.written if ignored(key) and not _handled(key))
    if unread:
        listed = ", ".join(map(cut, unread))
        if len(unread) > FEW and not verbose:
            listed = f"{len(unread)} keys (--verbose lists them)"
        yield f"ignored, as no step depends on them: {listed}"
    for key in config.unknown:
        near = nearest(key, named())
        hint = f"; {near}" if near.startswith("did you mean") else ""
        yield f"ignored, as no key of MaxText is called so: {cut(key)}{hint}"


def _handled(key: str) -> bool:
    """Whether a key is read, or asks for what is noted or refused."""
    return key in defaults() or key in LEFT_OUT or key in REFUSED
