"""The fills of the page: a colour for each theme and a hatching, by name."""

from collections.abc import Iterable
from dataclasses import dataclass

from tpusim.base.plain_text import plain
from tpusim.program import PassKind
from tpusim.report.figures.canvas import label_styles
from tpusim.report.figures.memory import holder_styles, memory_stacks
from tpusim.report.figures.palette import PASS_STYLES, FillStyle, axis_style
from tpusim.results import Result, pipelined

WAIT, HIDDEN = "core waits", "more iterations"
TILE = 8
"""Pixels of a side of the tile that a hatching repeats."""

STROKES = {
    "/": "M-1 1L1 -1M0 8L8 0M7 9L9 7",
    "\\": "M-1 7L1 9M0 0L8 8M7 -1L9 1",
    "-": "M0 4L8 4",
    "|": "M4 0L4 8",
    "+": "M0 4L8 4M4 0L4 8",
    "x": "M0 8L8 0M0 0L8 8",
    ".": "M1.5 2L2.5 2M5.5 6L6.5 6",
    "o": "M2 4A2 2 0 1 0 6 4A2 2 0 1 0 2 4",
    "O": "M1 4A3 3 0 1 0 7 4A3 3 0 1 0 1 4",
    "*": "M4 2L4 6M2 3L6 5M2 5L6 3",
}
"""The path that each sign of a hatching draws on a tile."""


@dataclass(frozen=True, slots=True)
class PageStyle:
    """A fill: its number in the page, its colours on a light and a dark page, and its path."""

    number: int
    name: str
    face: str
    dark: str
    path: str

    @property
    def ink(self) -> str:
        """The colour of text on a light page's fill."""
        return ink_on(self.face)

    @property
    def dark_ink(self) -> str:
        """The colour of text on a dark page's fill."""
        return ink_on(self.dark)


def page_styles(result: Result) -> dict[str, PageStyle]:
    """Return the fills of a report by name: kinds of work, mesh axes, and holders of HBM."""
    named = {name: axis_style(name) for name, size in result.program.axes if size > 1}
    named |= label_styles(result)
    named |= {WAIT: FillStyle("#ffffff", "xx"), HIDDEN: FillStyle("#e4e7eb", "..")}
    if pipelined(result) is not None:
        named |= {slot_name(kind): style for kind, style in PASS_STYLES.items()}
    named |= {holder_name(name): s for name, s in _holders(result).items()}
    return {
        name: PageStyle(
            number, plain(name), style.face, dark_face(style.face), hatch_path(style.hatch)
        )
        for number, (name, style) in enumerate(named.items())
    }


def _holders(result: Result) -> dict[str, FillStyle]:
    return holder_styles(memory_stacks(result, 1))


def holder_name(category: str) -> str:
    """Return the name of the fill of a holder of HBM."""
    return f"HBM: {category}"


def slot_name(kind: PassKind) -> str:
    """Return the name of the fill of the slots of a pipeline."""
    return f"{kind.name.lower()} slot"


def hatch_path(hatch: str) -> str:
    """Return the path of a hatching on a tile, in the notation of SVG."""
    return "".join(STROKES[sign] for sign in dict.fromkeys(hatch))


def dark_face(face: str) -> str:
    """Return a colour for a dark page: dark blues lighter, pale shades darker."""
    return mixed(face, "#ffffff", 0.35) if lightness(face) < 0.35 else mixed(face, "#141414", 0.3)


def ink_on(face: str) -> str:
    """Return black or white, whichever is easier to read on a colour."""
    return "#000000" if lightness(face) > 0.45 else "#ffffff"


def lightness(colour: str) -> float:
    """Return how light a colour is, from 0 for black to 1 for white."""
    red, green, blue = rgb(colour)
    return (0.3 * red + 0.59 * green + 0.11 * blue) / 255


def mixed(one: str, other: str, share: float) -> str:
    """Return a colour between two.

    >>> mixed("#000000", "#ffffff", 0.2)
    '#333333'
    """
    parts = (round(a + share * (b - a)) for a, b in zip(rgb(one), rgb(other), strict=True))
    return "#{:02x}{:02x}{:02x}".format(*parts)


def rgb(colour: str) -> tuple[int, ...]:
    """Return red, green and blue of `#rrggbb`."""
    return tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))


def scale_colour(shades: Iterable[str], share: float) -> str:
    """Return the colour at a fraction of a scale of equally spaced shades."""
    known = list(shades)
    place = min(max(share, 0.0), 1.0) * (len(known) - 1)
    at = min(int(place), len(known) - 2)
    return mixed(known[at], known[at + 1], place - at)
