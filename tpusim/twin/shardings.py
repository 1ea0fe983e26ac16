"""Layouts as JAX's `PartitionSpec`s, in source."""

from collections.abc import Sequence

from tpusim.partition import Layout


def spec(layout: Layout, lead: Sequence[str] = ()) -> str:
    """Return a layout as source: `P("fsdp", None, "tensor")`.

    lead: entries of dimensions before those of the layout.
    """
    entries = [*lead, *map(_entry, layout)]
    while entries and entries[-1] == "None":
        entries.pop()
    return f"P({', '.join(entries)})"


def _entry(axes: Sequence[str]) -> str:
    quoted = [f'"{axis}"' for axis in axes]
    if len(quoted) < 2:
        return quoted[0] if quoted else "None"
    return f"({', '.join(quoted)})"
