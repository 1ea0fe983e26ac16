"""Notes on features of a config that are not modelled, and on keys that are ignored."""

from collections.abc import Iterator

from tpusim.base.errors import nearest
from tpusim.base.shown_value import cut, shown
from tpusim.maxtext.config import MaxTextConfig, named
from tpusim.maxtext.key_table import LEFT_OUT, REFUSED, has_effect, ignored
from tpusim.maxtext.shipped_tables import defaults

MOST_LISTED = 30
"""The most ignored keys that are listed one by one; of more, only their number."""


def check_refused(config: MaxTextConfig) -> None:
    """Raise PlanError for a key of a feature that cannot be left out."""
    for key, what in REFUSED.items():
        value = config.table.get(key)
        if has_effect(value):
            raise config.fault(f"{key} is {shown(value)}: {what} cannot be simulated")


def notes_of(config: MaxTextConfig, *, verbose: bool = False) -> tuple[str, ...]:
    """Return a sentence for each difference between the run and the config."""
    return tuple(_notes(config, verbose))


def _notes(config: MaxTextConfig, verbose: bool) -> Iterator[str]:
    for key, what in LEFT_OUT.items():
        value = config.table.get(key)
        if has_effect(value, key):
            yield f"not modelled: {what} ({key} = {shown(value)})"
    if config.replaced:
        keys = ", ".join(config.replaced)
        yield f"model_name {config.text('model_name')} sets {keys} in the file's place"
    unread = tuple(key for key in config.written if ignored(key) and not _handled(key))
    if unread:
        listed = ", ".join(map(cut, unread))
        if len(unread) > MOST_LISTED and not verbose:
            listed = f"{len(unread)} keys (--verbose lists them)"
        yield f"ignored, as no step depends on them: {listed}"
    for key in config.unknown:
        near = nearest(key, named())
        hint = f"; {near}" if near.startswith("did you mean") else ""
        yield f"ignored, as no key of MaxText is called so: {cut(key)}{hint}"


def _handled(key: str) -> bool:
    """Return True if a key is read, noted or refused."""
    return key in defaults() or key in LEFT_OUT or key in REFUSED
