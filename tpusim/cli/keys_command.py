"""The command `tpusim keys`: the keys of a run file in one place."""

from collections.abc import Iterator

from tpusim.base.errors import PlanError, nearest
from tpusim.base.text_table import wrapped_table
from tpusim.runfile.schema import ALL_FIELDS, wanted

HEADS = ("key", "what to write")


def keys_text(prefix: str) -> str:
    """Return a table of the keys that begin so, each with what to write.

    Raise PlanError if there is none.
    """
    rows = [row for row in _rows() if row[0].startswith(prefix)]
    if not rows:
        known = [*ALL_FIELDS, *(key for key, _ in _rows())]
        raise PlanError(f"no key of a run file begins with {prefix!r}; {nearest(prefix, known)}")
    return "\n".join(wrapped_table([HEADS, *rows], left=1))


def _rows() -> Iterator[tuple[str, str]]:
    """Yield each key with its section, and what to write; of models, the keys of a transformer."""
    for section, keys in ALL_FIELDS.items():
        yield from ((f"{section}.{key}", wanted([section, key])) for key in keys)
