"""Values that print as several lines: short in a console, whole in a notebook."""

from tpusim.base.html_text import html_text
from tpusim.base.shown_value import cut

MOST_LINES = 8
LONGEST_LINE = 160


class ShortRepr:
    """A value whose `str` is a text: `repr` is its first lines, and a notebook shows all of it.

    A class has its own `__str__`; a dataclass leaves its own `repr` out (`repr=False`).
    """

    __slots__ = ()

    def __repr__(self) -> str:
        lines = str(self).splitlines()
        more = len(lines) - MOST_LINES
        rest = [f"... {more} more lines; print it for all of them"] if more > 0 else []
        return "\n".join([cut(line, LONGEST_LINE) for line in lines[:MOST_LINES]] + rest)

    def _repr_html_(self) -> str:
        """Return the whole text, for a notebook."""
        return html_text(str(self))
