"""The registry of the figures that a report has: one entry for each.

A figure is one file: a function that computes its data, one that draws them, and a call of
`register_figure`; the line of `tpusim.report.figures` that imports it puts it into every report.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

from tpusim.base.errors import TpusimError
from tpusim.results import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tpusim.serving import ServingResult

Given = ParamSpec("Given")
Drawn = TypeVar("Drawn")
Plot: TypeAlias = "Callable[[Result], Axes | Sequence[Axes]]"


@dataclass(frozen=True, slots=True)
class ReportFigure:
    """A figure of the report.

    name: of its files, without their endings.
    data: computes what it shows, without matplotlib.
    plot: draws it on a new matplotlib figure and returns the axes, or all of them.
    applies: True for results that have such a figure.
    """

    name: str
    data: Callable[[Result], object]
    plot: Plot
    applies: Callable[[Result], bool]


@dataclass(frozen=True, slots=True)
class ServingFigure:
    """A figure of a simulated server; `name`, `data` and `plot` are those of `ReportFigure`.

    Where `data` returns None there is no such figure.
    """

    name: str
    data: "Callable[[ServingResult], Any]"
    plot: "Callable[[Any], Axes]"


FIGURES: dict[str, ReportFigure] = {}
"""The registered figures, by name."""

SERVING_FIGURES: dict[str, ServingFigure] = {}
"""The figures of a simulated server, by name."""


def register_figure(
    name: str,
    data: Callable[[Result], object],
    plot: Plot,
    applies: Callable[[Result], bool] = lambda result: True,
) -> None:
    """Add a figure to every report that is written from now on; see `ReportFigure`.

    Raise TpusimError if the name is taken, or cannot name a file.
    """
    _check_name(name, FIGURES)
    FIGURES[name] = ReportFigure(name, data, plot, applies)


def register_serving_figure(
    name: str, data: "Callable[[ServingResult], Any]", plot: "Callable[[Any], Axes]"
) -> None:
    """Add a figure to every report of a simulated server; see `ServingFigure`.

    plot: draws what `data` returns. Raise TpusimError as `register_figure`.
    """
    _check_name(name, SERVING_FIGURES)
    SERVING_FIGURES[name] = ServingFigure(name, data, plot)


def _check_name(name: str, taken: Collection[str]) -> None:
    if not name.replace("-", "_").isidentifier():
        raise TpusimError(f"figure {name!r} cannot name a file; write letters, digits, - and _")
    if name in taken:
        raise TpusimError(f"there is a figure {name!r} already; choose another name")


def of_result(plot: Callable[Given, Drawn]) -> Callable[Given, Drawn]:
    """Let `plot` draw a result, its first argument; for anything else TpusimError is raised."""
    name = plot.__name__.removeprefix("plot_")

    @wraps(plot)
    def drawn(*args: Given.args, **kwargs: Given.kwargs) -> Drawn:
        given = args[0] if args else kwargs.get("result")
        if not isinstance(given, Result):
            raise TpusimError(
                f"ts.plot.{name} draws a result, not a {type(given).__name__}; write "
                f"ts.plot.{name}(ts.simulate(...))"
            )
        return plot(*args, **kwargs)

    return drawn
