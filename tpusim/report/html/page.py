"""The page: the content of all sections, put into the template, around the figures of the report.

Jinja2 escapes every text. A figure is an image of its own, whose names and styles reach nothing
else, and a policy in the page forbids all requests and all scripts, so that nothing runs that a
label might hold.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from tpusim.base.plain_text import plain
from tpusim.base.units import format_bytes, format_seconds
from tpusim.report.figures.roofline import operation_rows, roofline_data
from tpusim.report.html.advice import best_change, change_tables, notes
from tpusim.report.html.headline import answers, facts
from tpusim.report.html.placement_rows import axis_rows
from tpusim.report.html.resource_use import resource_rows
from tpusim.report.html.time_parts import time_views
from tpusim.report.html.trust import chip_sources, conventions, runs_like
from tpusim.report.link_traffic import BUSY
from tpusim.results import LEAST_SHOWN, PICO, Advice, Result, ServedStep, limits

if TYPE_CHECKING:
    from jinja2 import Environment, Template
    from markupsafe import Markup

ASSETS = "assets"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The content security policy of a page: no script, no request, its own styles and images."""

ESCAPED = '%"#&'
"""What an address in an attribute escapes."""

PATH, POINT = re.compile(r' d="([^"]*)"'), re.compile(r"([ML]) ([-.\d]+) ([-.\d]+)")
CURVES = "CQS"
"""The commands of a path of an SVG, one of its points, and commands with points of other forms."""

LONGEST_SENTENCE = 1000
"""Characters of a text in the page; names are shorter."""


def report_page(
    result: Result,
    ideal: Result | None = None,
    advice: Advice | None = None,
    figures: Mapping[str, bytes] | None = None,
) -> str:
    """Return the report of a result as one HTML page that needs no other file.

    ideal: the lower bound of a perfect compiler, if it is known.
    advice: what bounds the step and what to change (`result.advice()`); without it, the page has
        no changes.
    figures: content by file name, as `figure_bytes` returns it; drawn if they are not given.
    """
    if figures is None:
        from tpusim.report.figures.render import figure_bytes

        figures = figure_bytes(result)
    stages = len(result.programs) > 1
    bounds = limits(result) if advice is None else advice.limits
    answered = answers(result, ideal, bounds, best_change(result, advice))
    return template("report.html.jinja").render(
        title=plain(result.title),
        chips=result.pod.chips,
        kind="step of a server" if isinstance(result, ServedStep) else "training step",
        verdict=str(result.fit),
        to_fit=result.ways_to_fit(),
        step=format_seconds(result.step_time_s),
        answers=answered,
        facts=list(facts(result)),
        warnings=[warning.text for warning in result.warnings()],
        ran=[(head, text) for head, text in result.about() if head != "placement"],
        pipeline=result.pipeline,
        device=f"stage {result.lane}, which holds most HBM" if stages else "",
        chosen="given" if result.placement_given else "chosen by tpusim",
        axes=axis_rows(result),
        views=time_views(result),
        step_ps=float(result.timeline.total_ps),
        memory=result.memory_bytes,
        peak=result.hbm_peak_bytes,
        limit=result.hbm_bytes,
        resources=resource_rows(result),
        operations=operation_rows(result, roofline_data(result)),
        reasons=[str(reason) for reason in advice.reasons] if advice else (),
        notes=list(notes(result)),
        limits=[limit for limit in bounds if limit.share >= LEAST_SHOWN],
        changes=list(change_tables(advice)) if advice else (),
        runs=runs_like(result),
        ranged=result.error_range is not None,
        sources=chip_sources(result.pod.chip),
        conventions=conventions(result),
        busy=BUSY,
        figures=drawings(figures),
    )


def drawings(files: Mapping[str, bytes]) -> "dict[str, Markup]":
    """Return the addresses of the drawings among files, by their names without `.svg`."""
    return {
        name.removesuffix(".svg"): svg_source(content)
        for name, content in files.items()
        if name.endswith(".svg")
    }


def svg_source(svg: bytes) -> "Markup":
    """Return the address of a drawing that is in the page itself.

    No sign of it ends the attribute that it is in.
    """
    from markupsafe import Markup

    text = PATH.sub(_square_path, svg.decode().replace("\n", " "))
    if "'" not in text:  # a double quote takes three signs in an address, a single one takes one
        text = text.replace('"', "'")
    for sign in ESCAPED:
        text = text.replace(sign, f"%{ord(sign):02X}")
    return Markup(f"data:image/svg+xml,{text}")


def _square_path(path: re.Match[str]) -> str:
    """Return the same path, with one coordinate for each line along an axis.

    Boxes and steps, of which large drawings consist, take about half the signs.
    """
    if any(curve in path[1] for curve in CURVES):
        return path[0]
    x = y = ""

    def shortened(point: re.Match[str]) -> str:
        nonlocal x, y
        command, *at = point.groups()
        (old_x, old_y), (x, y) = (x, y), at
        if command == "M" or (x != old_x and y != old_y):
            return f"{command}{x} {y}"
        return f"V{y}" if x == old_x else f"H{x}"

    return f' d="{POINT.sub(shortened, path[1])}"'


def template(name: str) -> "Template":
    """Return a template of the assets, which escapes and shortens every text."""
    return _environment().get_template(name)


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    env = Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    env.filters |= {
        "seconds": lambda picoseconds: format_seconds(picoseconds * PICO),
        "bytes": format_bytes,
        "percent": lambda share: f"{share:.1%}",
        "plain": plain,
    }
    env.globals |= {"css": _asset("report.css"), "policy": POLICY}
    return env


def _asset(name: str) -> str:
    return (files("tpusim.report.html") / ASSETS / name).read_text("utf-8")


def _shown(value: Any) -> Any:
    """Return what is printed, a text without what cannot be shown; the page's own parts as is."""
    return plain(value, LONGEST_SENTENCE) if type(value) is str else value
