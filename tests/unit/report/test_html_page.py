"""The page: every section, numbers that are the result's, nothing remote, and hostile labels."""

import csv
import gzip
import json
import re
from dataclasses import replace
from functools import cache
from html import unescape
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest
from drawings import drawing
from extent import sample, thorough
from inputs import plain
from markupsafe import escape
from replays import BODY, ORIGIN, POD, PROGRAM, placed, small_replay
from reports import (
    AXIS_STYLES,
    HOLDER_STYLES,
    OTHER_AXES,
    OTHER_HOLDERS,
    PARTS,
    axis_style,
    figure_bytes,
    link_series,
    operation_rows,
    render_files,
    report_page,
    resource_rows,
)
from steps import replay_program

import tpusim as ts
from tpusim.base import format_bytes, format_seconds
from tpusim.base.units import format_dollars
from tpusim.program import Loop
from tpusim.report import memory_data, roofline_data, utilisation_data
from tpusim.report.html.advice import best_change, change_tables
from tpusim.report.html.headline import Answer, answers, facts
from tpusim.report.html.page import LONGEST_SENTENCE, POLICY
from tpusim.report.html.time_parts import time_cells, time_views
from tpusim.report.html.trust import LEAST_ALIKE, chip_sources, runs_like
from tpusim.results import LEAST_SHOWN, Advice, ChangeKind, Fit, Result, limits

pytestmark = pytest.mark.usefixtures("advised")

SECTIONS = [
    *("headline", "plan", "time", "advice", "timeline", "use", "memory"),
    *("links", "roofline", "runs", "sources"),
]
HOSTILE = [
    "<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "x" * 10_000,
    "\u202egnitirw\u2066", "two\nlines\rhere", "null\x00bell\x07", "=cmd()|'/c calc'!A1",
    "{{ 7 * 7 }}", "]]>&amp;\"'",
]  # fmt: skip
ROOT = Path(__file__).parents[3]
MODEL = ts.models.Transformer(layers=4, embed=1024, mlp=4096, heads=8, vocab=8192)


@cache
def result(kind: str = "dense") -> Result:
    if kind == "replay":
        return small_replay()
    if kind == "pipeline":
        keys = {"mesh": {"stage": 4, "fsdp": 4}, "microbatches": 4}
    elif kind == "experts":
        keys = {"mesh": {"expert": 4, "fsdp": 4}}
    else:
        keys = {"mesh": {"fsdp": 4, "tensor": 4}}
    model = MODEL.replace(experts=8, experts_per_token=2) if kind == "experts" else MODEL
    plan = ts.Plan(seq_len=512, global_batch=64, **keys)
    return ts.simulate(model, plan, ts.Slice("v5e", "4x4"))


kinds = pytest.mark.parametrize("kind", ["dense", "pipeline", "experts", "replay"])
one_kind = pytest.mark.parametrize(
    "kind", ["dense", *map(thorough, ["pipeline", "experts", "replay"])]
)


class Page(HTMLParser):
    """The elements of a page and what they name, and the data in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            elif name in ("href", "src", "action", "srcset"):
                self.links.append(str(value))
            elif name.startswith("on"):
                self.handlers.append(name)


@cache
def files_of(kind: str) -> dict[str, bytes]:
    return figure_bytes(result(kind))


@cache
def page_of(kind: str) -> str:
    return report_page(result(kind), figures=files_of(kind))


def embedded(page: str) -> dict[str, bytes]:
    """The drawings of a page, by what they show."""
    found = re.findall(r'<img src="data:image/svg\+xml,([^"]*)" alt="([^"]*)">', page)
    return {what: unquote(source).encode() for source, what in found}


@one_kind
def test_a_page_has_every_section_and_asks_for_nothing(kind: str) -> None:
    page = Page(page_of(kind))
    assert [name for name in page.ids if name in SECTIONS] == SECTIONS
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert len(page.ids) == len(set(page.ids))
    assert str(escape(POLICY)) in page_of(kind)
    assert "script" not in page.tags
    assert not page.handlers


@one_kind
def test_a_page_has_the_figures_of_the_report(kind: str) -> None:
    """Each drawing is that of its file, with the same elements along the same paths."""
    files = files_of(kind)
    drawn = sorted(drawing(svg) for name, svg in files.items() if name.endswith("svg"))
    shown = embedded(page_of(kind))
    assert sorted(map(drawing, shown.values())) == drawn
    assert len(shown) == len(drawn) >= 7
    for what, svg in shown.items():
        assert len(what) > 20
        assert ElementTree.fromstring(svg).tag.endswith("svg")


def test_figures_of_ones_own_are_in_the_page() -> None:
    svg = b"<svg xmlns='http://www.w3.org/2000/svg' width='100%'/>"
    page = report_page(result(), figures={"mine.svg": svg, "mine.png": b""})
    assert embedded(page) == {"mine": svg}
    assert 'id="more"' in page
    assert 'id="more"' not in page_of("dense")


@pytest.mark.thorough
@one_kind
def test_the_same_result_gives_the_same_page(kind: str) -> None:
    assert report_page(result(kind)) == page_of(kind)


@kinds
def test_every_view_of_the_time_sums_to_the_step(kind: str) -> None:
    one = result(kind)
    assert sum(time_cells(one).values()) == pytest.approx(one.timeline.total_ps, abs=1)
    for view in time_views(one):
        parts = [part.picoseconds for part in view.parts]
        assert sum(parts) == pytest.approx(one.timeline.total_ps, abs=1), view.key
        for part in view.parts:
            inside = [ps for _, ps in part.about]
            assert not inside or sum(inside) == pytest.approx(part.picoseconds, abs=1)


@kinds
def test_the_view_by_kind_is_the_breakdown(kind: str) -> None:
    by_kind = time_views(result(kind))[0]
    parts = {part.name: part.picoseconds * 1e-12 for part in by_kind.parts}
    assert parts == {name: pytest.approx(s) for name, s in result(kind).breakdown_s.items()}


def answered(one: Result, ideal: Result | None = None) -> dict[str, Answer]:
    """The answers of the first screen, without advice."""
    return {each.question: each for each in answers(one, ideal, limits(one), None)}


@kinds
def test_the_first_screen_is_the_result(kind: str) -> None:
    one = result(kind)
    found = answered(one)
    assert found["How fast?"].value == f"{format_seconds(one.step_time_s)} per step"
    if one.mfu is None:
        assert found["How good?"].value == f"HFU {one.hfu:.1%}"
    else:
        assert found["How good?"].value == f"MFU {one.mfu:.1%}"
        assert (one.measured_mfu is None) or str(one.measured_mfu) in found["How good?"].about
    assert found["Does it fit?"].good is one.fits
    first = limits(one)[0]
    assert found["What bounds it?"].bars[0] == (first.resource, first.share)


def test_a_lower_bound_says_how_much_a_perfect_compiler_saves() -> None:
    one = result()
    ideal = replace(one, step_time_s=0.75 * one.step_time_s)
    assert any("25.0% less" in line for line in answered(one, ideal)["How good?"].about)


def test_cost_and_energy_are_those_of_the_slice_for_as_long_as_a_million_tokens_take() -> None:
    one = result()
    chip = one.pod.chip.replace(price="3.6 USD/h", power="200 W")
    priced = replace(one, pod=ts.Slice(chip, "4x4"))
    seconds = 1e6 / (64 * 512 / one.step_time_s)
    cost = answered(priced)["What does it cost?"]
    assert cost.value == f"{format_dollars(16 * 3.6 / 3600 * seconds)} per million tokens"
    assert "at $3.60 per chip-hour" in cost.about
    energy = {fact.name: fact.value for fact in facts(priced)}
    assert energy["Energy per million tokens"] == f"{16 * 200 * seconds / 3600:.3g} Wh"


@kinds
def test_shares_over_time_are_the_shares_of_the_step(kind: str) -> None:
    """One definition of busy: bytes over the full rate, whatever the time."""
    one = result(kind)
    edges = np.linspace(0, one.timeline.total_ps, PARTS + 1)
    shown = {use.link: use.busy_ps / one.timeline.total_ps for use in one.shown.links}
    for link, shares in link_series(one, edges).items():
        assert -1e-9 <= shares.min() <= shares.max() <= 1
        assert shares.mean() == pytest.approx(shown[link], rel=1e-6, abs=1e-9), link
    for row in resource_rows(one)[1:]:
        assert row.mean in shown.values()
        assert sum(row.shares) / PARTS == pytest.approx(row.mean, rel=1e-6, abs=1e-9)
    if len(one.programs) == 1:
        totals = {row.resource: row.total for row in utilisation_data(one)}
        assert totals["hbm"] == pytest.approx(shown["hbm"], rel=1e-9)


def test_bytes_spread_evenly_are_those_that_were_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    one = result("replay")
    edges = np.linspace(0, one.timeline.total_ps, 33)
    followed = link_series(one, edges)
    monkeypatch.setattr("tpusim.report.link_traffic.MOST_FLOWS", 0)
    for link, shares in link_series(one, edges).items():
        assert shares.mean() == pytest.approx(followed[link].mean(), rel=1e-3, abs=1e-9)


@kinds
def test_the_mxu_is_busy_for_the_flops_of_the_step(kind: str) -> None:
    one = result(kind)
    (mxu,) = (row for row in resource_rows(one) if row.name == "MXU")
    if len(one.programs) == 1:
        whole = float(one.flops.total) / one.peak_flops / one.step_time_s
        assert mxu.mean == pytest.approx(whole, rel=1e-6)
    assert 0 < mxu.mean < 1


@kinds
def test_the_memory_of_the_page_is_that_of_the_figure(kind: str) -> None:
    table = page_of(kind).partition("Held at the peak")[2].partition("</table>")[0]
    cells = re.findall(r'<tr[^>]*><td>(.*?)</td><td class="n">(.*?)</td></tr>', table)
    memory = memory_data(result(kind))
    sizes = {unescape(re.sub("</?bdi>", "", name)): size for name, size in cells}
    assert sizes == {
        **{name: format_bytes(held) for name, held in memory.held.items()},
        "Peak": format_bytes(memory.peak_bytes),
        "Usable": format_bytes(memory.limit_bytes),
    }


@kinds
def test_the_page_lists_the_operations_of_the_roofline(kind: str) -> None:
    one = result(kind)
    for number, name, phase, *shares in operation_rows(one, roofline_data(one)):
        cells = [f'<td class="n">{number}</td>', f"<bdi>{escape(plain(name))}</bdi>"]
        cells += [phase, *shares]
        assert all(cell in page_of(kind) for cell in cells)


def test_the_numbers_of_the_chip_say_where_they_come_from() -> None:
    chip = result().pod.chip
    rows = {row.name: row for row in chip_sources(chip)}
    assert all(row.origin.strip(".") for row in rows.values())
    changed = {row.name: row for row in chip_sources(chip.replace(hbm_bandwidth="1 TB/s"))}
    assert [name for name in rows if rows[name] != changed[name]] == ["hbm_bandwidth"]
    assert changed["hbm_bandwidth"].kind == "given by you"


def test_only_runs_like_it_are_listed_the_most_alike_first() -> None:
    alike = [float(run.likeness) for run in runs_like(measured())]
    assert alike == sorted(alike, reverse=True)
    assert alike[0] == 1
    assert min(alike) >= LEAST_ALIKE
    assert runs_like(result("replay")) == []


@cache
def measured() -> Result:
    """A run that was measured."""
    run = ts.read_run(str(ROOT / "experiments/bert_480b/run.toml"))
    return ts.simulate(run.model, run.plan, run.pod)


@pytest.mark.parametrize("kind", ["dense", "experts", "pipeline", "replay"])
def test_the_page_says_where_nothing_like_it_was_measured(kind: str) -> None:
    expected = result(kind).error_range
    page = page_of(kind)
    assert ("runs like this" in page) is (expected is not None and expected.measured)
    if expected is None:
        assert "no range: " in page
    elif not expected.measured:
        assert "nothing like it was measured: " in page
        assert "8 of 10" not in page
    assert ("so the prediction has no range" in page) is (expected is None)


@cache
def advised() -> Advice:
    return result().advice(quick=True)


def test_limits_and_simulated_changes_are_in_the_page() -> None:
    advice, figures = advised(), files_of("dense")
    page = report_page(result(), advice=advice, figures=figures)
    assert "Each change below was simulated" in page
    shown = [limit for limit in advice.limits if limit.share >= LEAST_SHOWN]
    assert all(f"<td>{escape(limit.resource)}</td>" in page for limit in shown)
    for table in change_tables(advice):
        assert all(str(escape(row.what)) in page for row in table.rows)
        if table.others > 1:
            assert f"{table.others} other changes were simulated and save nothing." in page
    assert any(table.others > 1 for table in change_tables(advice))
    assert "1 other change was simulated and saves nothing." in page
    assert "Each change below was simulated" not in page_of("dense")


def with_changes(*saves: float, fit: Fit = Fit.FITS) -> Advice:
    """The advice on the dense plan with its first change of the plan, saving as much each time."""
    advice = advised()
    one = next(change for change in advice.changes if change.settings)
    changes = [
        replace(one, kind=ChangeKind.PLAN, what=f"change {number}", saves=share, fit=fit)
        for number, share in enumerate(saves)
    ]
    return replace(advice, changes=tuple(changes), reasons=())


def test_a_change_that_takes_longer_is_never_first() -> None:
    advice = with_changes(-0.3, 0.02, 0.0, 0.1)
    (table,) = change_tables(advice)
    assert [row.what for row in table.rows] == ["change 3", "change 1"]
    assert table.others == 2
    best = best_change(result(), advice)
    assert best is not None
    assert (best.gain, best.about[0]) == ("Saves 10.0%", "change 3")
    none = best_change(result(), with_changes(-0.3, 0.0))
    assert none is not None
    assert none.gain == "Nothing found"


def test_a_change_that_does_not_fit_is_no_advice() -> None:
    advice = with_changes(0.3, fit=Fit.TOO_LARGE)
    assert list(change_tables(advice)) == []
    best = best_change(result(), advice)
    assert best is not None
    assert best.settings == ()


def test_the_best_change_is_the_best_of_changes_and_reasons() -> None:
    """As the summary names it."""
    advice = advised()
    best = best_change(result(), advice)
    assert best is not None
    able = [each.saves for each in advice.of(ChangeKind.PLAN) if each.fit is Fit.FITS]
    most = max(*able, *(reason.saves for reason in advice.reasons))
    assert best.gain == f"Saves {most:.1%}"
    page = report_page(result(), advice=advice, figures=files_of("dense"))
    assert all(str(escape(str(reason)[1:])) in page for reason in advice.reasons)


def labelled(label: str) -> Result:
    """A replay with a label as the name of the program, of a line and a scope."""
    loop, *rest = BODY
    assert isinstance(loop, Loop)
    op = replace(loop.body[2], scope=label, source=label)
    body = (replace(loop, body=(*loop.body[:2], op, *loop.body[3:])), *rest)
    origin = replace(ORIGIN, name=label)
    program = replace(PROGRAM, body=body, name=label)
    return replay_program(program, POD, placed(), origin=origin, unknown={})


@pytest.mark.parametrize("label", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.usefixtures("undrawn")
def test_labels_of_others_are_text(label: str) -> None:
    one = labelled(label)
    page = report_page(one)
    found = Page(page)
    assert [name for name in found.ids if name in SECTIONS] == SECTIONS
    assert "script" not in found.tags
    assert len(embedded(page)) == found.tags.count("img")
    assert all(link.startswith(("#", "data:image/svg+xml,", "data:,")) for link in found.links)
    assert not found.handlers
    assert format_seconds(one.step_time_s) in page
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\u202a-\u202e\u2066-\u2069]", page)
    assert "x" * (LONGEST_SENTENCE + 1) not in page
    assert plain(label) == label or "\ufffd" in plain(label) or "…" in plain(label)


@pytest.mark.parametrize("label", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.usefixtures("undrawn")
def test_labels_of_others_break_no_table_or_trace(label: str) -> None:
    files = render_files(labelled(label), None, html=False)
    for name, content in files.items():
        if name.endswith(".csv"):
            table = list(csv.reader(StringIO(content.decode(), newline="")))
            assert len({len(row) for row in table}) == 1, name
            assert not [cell for row in table for cell in row if cell[:1] in "=@+" and cell]
    trace = json.loads(gzip.decompress(files["trace.json.gz"]))
    names = [event["name"] for event in trace["traceEvents"]]
    assert not [name for name in names if re.search("[\x00-\x1f\u202a-\u202e]", name)]


@pytest.mark.thorough
@pytest.mark.parametrize("label", sample(HOSTILE, 12), ids=lambda label: HOSTILE.index(label))
def test_labels_of_others_break_no_figure(label: str) -> None:
    one = labelled(label)
    files = figure_bytes(one)
    drawn = {name: svg for name, svg in files.items() if name.endswith(".svg")}
    for name, svg in drawn.items():
        root = ElementTree.fromstring(svg)
        assert float(root.attrib["width"].removesuffix("pt")) < 1200, name
    assert len(embedded(report_page(one, figures=files))) == len(drawn)


def test_the_style_of_an_axis_follows_from_its_name_alone() -> None:
    assert axis_style("fsdp") == AXIS_STYLES["fsdp"]
    assert axis_style("mine") == axis_style("mine")
    assert axis_style("dcn_fsdp").face == axis_style("fsdp").face
    assert axis_style("dcn_fsdp").hatch != axis_style("fsdp").hatch
    both = axis_style("data+fsdp")
    assert both.face == axis_style("data").face
    assert both not in (axis_style("data"), axis_style("fsdp"), axis_style("fsdp+data"))
    known = [*AXIS_STYLES.values()]
    assert len({style.hatch for style in known}) == len({style.face for style in known})
    assert len({style.hatch for style in known}) == len(known)


def test_what_holds_memory_does_not_look_like_a_mesh_axis() -> None:
    axes = {style.face for style in (*AXIS_STYLES.values(), *OTHER_AXES)}
    holders = (*HOLDER_STYLES.values(), *OTHER_HOLDERS)
    assert axes.isdisjoint(style.face for style in holders)
    assert len({(style.face, style.hatch) for style in holders}) == len(holders)
