"""The page: the content of all sections, put into the template.

Jinja2 escapes every text, and a policy in the page forbids all requests and every script but its
own two, so that nothing runs that a label might hold.
"""

import json
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from tpusim.base.plain_text import plain
from tpusim.base.units import format_bytes, format_seconds
from tpusim.report.html.advice import changes, findings
from tpusim.report.html.chart_data import chart_data
from tpusim.report.html.drawings import heat_map, mesh_rows, roof_drawing
from tpusim.report.html.headline import headline
from tpusim.report.html.page_styles import holder_name, page_styles
from tpusim.report.html.time_parts import time_views
from tpusim.report.html.torus_groups import axis_groups
from tpusim.report.html.trust import chip_sources, conventions, runs_like
from tpusim.report.link_traffic import BUSY
from tpusim.results import EXPOSED, PICO, Advice, PlanResult, Result

if TYPE_CHECKING:
    from jinja2 import Template

ASSETS = "assets"
LONGEST_SENTENCE = 1000
"""Characters of a text in the page; names are shorter."""


def report_page(result: Result, ideal: Result | None = None, advice: Advice | None = None) -> str:
    """Return the report of a result as one HTML page that needs no other file.

    ideal: the lower bound of a perfect compiler, if it is known.
    advice: what bounds the step and what to change (`result.advice()`); without it, the page has
        what the result itself can say.
    """
    styles = page_styles(result)
    held = result.memory_bytes.items()
    views = time_views(result)
    scripts = {"library": asset("uPlot.min.js"), "script": asset("report.js")}
    return template("report.html.jinja").render(
        title=plain(result.title),
        chips=result.pod.chips,
        verdict=str(result.fit),
        facts=headline(result, ideal),
        plan=str(result.plan) if isinstance(result, PlanResult) else "",
        pipeline=result.pipeline,
        device=f"stage {result.lane}, which holds most HBM" if len(result.programs) > 1 else "",
        chosen="given" if result.placement_given else "chosen by tpusim",
        mesh=mesh_rows(result),
        groups=axis_groups(result),
        views=views,
        bar=views[0].parts,
        step_ps=float(result.timeline.total_ps),
        memory=[(name, size, styles.get(holder_name(name))) for name, size in held],
        heat=heat_map(result),
        roof=roof_drawing(result),
        findings=findings(result, advice is not None),
        limits=advice.limits if advice else (),
        changes=list(changes(advice)) if advice else (),
        runs=runs_like(result),
        ranged=result.error_range is not None,
        sources=chip_sources(result.pod.chip),
        conventions=conventions(result),
        busy=BUSY,
        styles=styles,
        data=chart_data(result, styles),
        css=asset("uPlot.min.css") + asset("report.css"),
        policy=policy(*scripts.values()),
        **scripts,
    )


def policy(*scripts: str) -> str:
    """Return a content security policy under which these scripts run and nothing is requested."""
    known = " ".join(f"'sha256-{_digest(text)}'" for text in scripts) or "'none'"
    return f"default-src 'none'; script-src {known}; style-src 'unsafe-inline'; img-src data:"


def _digest(text: str) -> str:
    return b64encode(sha256(text.encode()).digest()).decode()


@cache
def asset(name: str) -> str:
    """Return a file of the page's assets."""
    return (files("tpusim.report.html") / ASSETS / name).read_text("utf-8")


@cache
def template(name: str) -> "Template":
    """Return a template of the assets, which escapes and shortens every text."""
    from jinja2 import Environment, StrictUndefined

    env = Environment(
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
        "data": _data,
    }
    env.globals |= {"fill_of": fill_of}
    return env.from_string(asset(name))


def _shown(value: Any) -> Any:
    """Return what is printed, a text without what cannot be shown; the page's own parts as is."""
    return plain(value, LONGEST_SENTENCE) if type(value) is str else value


def _data(value: Any) -> Any:
    """Return data as JSON that no text in it can end."""
    from markupsafe import Markup

    written = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    for sign in "<>&":
        written = written.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(written)


def fill_of(label: str, styles: Mapping[str, Any]) -> Any:
    """Return the fill of a kind of work or of an axis, or None."""
    return styles.get(label.removeprefix(EXPOSED)) if label else None
