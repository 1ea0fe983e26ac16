"""Names that other libraries have for what tpusim has another name for."""

from collections.abc import Collection, Mapping
from functools import cache

from tpusim.base.shipped_table import shipped_table


@cache
def our_names() -> Mapping[str, str]:
    """Return the name that tpusim has for each of other libraries' names."""
    parts = shipped_table("base", "foreign_names.toml").values()
    return {theirs: ours for part in parts for ours, names in part.items() for theirs in names}


def our_name(name: str, valid: Collection[str]) -> str | None:
    """Return the name that tpusim has for what another library calls `name`, if it is valid."""
    found = our_names().get(name)
    return found if found in valid else None
