"""Layouts as JAX's `PartitionSpec`s, in source."""

from collections.abc import Sequence

from tpusim.partition import Layout


def spec(layout: Layout, lead: Sequence[str] = ()) -> str:
    """Return a layout as source: `P("fsdp", None, "tensor")`.

    lead: entries of dimensions before those of the layout.
    """
    entries = [*lead, *map(entry, layout)]
    while entries and entries[-1] == "None":
        entries.pop()
    return f"P({', '.join(entries)})"


def entry(axes: Sequence[str]) -> str:
    """Return the axes of one dimension as source: `("data", "fsdp")`."""
    quoted = [f'"{axis}"' for axis in axes]
    if len(quoted) < 2:
        return quoted[0] if quoted else "None"
    return f"({', '.join(quoted)})"
