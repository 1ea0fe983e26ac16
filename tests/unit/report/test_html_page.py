"""The page: every section, numbers that are the result's, nothing remote, and hostile labels."""

import csv
import gzip
import json
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from io import StringIO
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from markupsafe import escape
from replays import BODY, ORIGIN, POD, PROGRAM, placed, small_replay

import tpusim as ts
from tpusim.base.plain_text import plain
from tpusim.base.units import format_seconds
from tpusim.program import Loop
from tpusim.report import memory_data, utilisation_data
from tpusim.report.figures.memory import HOLDER_STYLES, OTHER_HOLDERS
from tpusim.report.figures.palette import AXIS_STYLES, OTHER_AXES, axis_style
from tpusim.report.html import report_page
from tpusim.report.html.advice import CHANGES_SHOWN
from tpusim.report.html.chart_data import COLUMNS, joined, use_data
from tpusim.report.html.headline import headline
from tpusim.report.html.page import LONGEST_SENTENCE
from tpusim.report.html.page_styles import dark_face, ink_on
from tpusim.report.html.time_parts import time_cells, time_views
from tpusim.report.html.trust import chip_sources, runs_like
from tpusim.report.link_traffic import link_series
from tpusim.report.report_files import render_files
from tpusim.report.track_slices import core_slices
from tpusim.results.advice import ChangeKind
from tpusim.results.result import Result
from tpusim.simulation.program_run import replay_program

SECTIONS = [
    *("headline", "plan", "time", "advice", "timeline", "use", "memory"),
    *("links", "roofline", "runs", "sources"),
]
HOSTILE = [
    "<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "x" * 10_000,
    "\u202egnitirw\u2066", "two\nlines\rhere", "null\x00bell\x07", "=cmd()|'/c calc'!A1",
    "{{ 7 * 7 }}", "]]>&amp;\"'",
]  # fmt: skip
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


def data_of(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    return json.loads(found[1])


@kinds
def test_a_page_has_every_section_and_asks_for_nothing(kind: str) -> None:
    page = Page(report_page(result(kind)))
    assert [name for name in page.ids if name in SECTIONS] == SECTIONS
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.count("script") == 3
    assert not page.handlers


@kinds
def test_the_same_result_gives_the_same_page(kind: str) -> None:
    assert report_page(result(kind)) == report_page(result(kind))


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


@kinds
def test_the_headline_is_the_result(kind: str) -> None:
    one = result(kind)
    facts = {fact.name: fact.value for fact in headline(one, None)}
    assert facts["Step time"] == format_seconds(one.step_time_s)
    assert facts["MFU"] == ("not known" if one.mfu is None else f"{one.mfu:.1%}")
    assert facts["HFU"] == f"{one.hfu:.1%}"


def test_cost_and_energy_are_those_of_the_slice_for_as_long_as_a_million_tokens_take() -> None:
    one = result()
    chip = one.pod.chip.replace(price="3.6 USD/h", power="200 W")
    facts = {f.name: f.value for f in headline(replace(one, pod=ts.Slice(chip, "4x4")), None)}
    seconds = 1e6 / (64 * 512 / one.step_time_s)
    assert facts["Cost per million tokens"] == f"{16 * 3.6 / 3600 * seconds:.3g} USD"
    assert facts["Energy per million tokens"] == f"{16 * 200 * seconds / 3600:.3g} Wh"


@kinds
def test_shares_over_time_are_the_shares_of_the_step(kind: str) -> None:
    """One definition of busy: bytes over the full rate, whatever the time."""
    one = result(kind)
    edges = np.linspace(0, one.timeline.total_ps, COLUMNS + 1)
    shown = {use.link: use.busy_ps / one.timeline.total_ps for use in one.shown.links}
    for link, shares in link_series(one, edges).items():
        assert -1e-9 <= shares.min() <= shares.max() <= 1
        assert shares.mean() == pytest.approx(shown[link], rel=1e-6, abs=1e-9), link
    for row in use_data(one)["rows"][1:]:
        assert row["mean"] in shown.values()
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
    (mxu,) = (row for row in use_data(one)["rows"] if row["name"] == "MXU")
    if len(one.programs) == 1:
        whole = float(one.flops.total) / one.peak_flops / one.step_time_s
        assert mxu["mean"] == pytest.approx(whole, rel=1e-6)
    assert 0 < mxu["mean"] < 1


@kinds
def test_the_memory_of_the_page_is_that_of_the_figure(kind: str) -> None:
    memory = data_of(report_page(result(kind)))["memory"]
    sums = [sum(each) for each in zip(*(row["values"] for row in memory["rows"]), strict=True)]
    assert max(sums) == memory["peak"] == memory_data(result(kind)).peak_bytes


@kinds
def test_the_core_of_the_whole_step_has_no_gap(kind: str) -> None:
    whole = data_of(report_page(result(kind)))["timelines"][0]
    core = whole["rows"][0]["slices"]
    assert sum(each[1] for each in core) == pytest.approx(result(kind).step_time_s, rel=1e-6)


def test_joined_slices_keep_their_time() -> None:
    track = core_slices(result().shown, every=True)
    many = [replace(t, start_ps=t.start_ps + k, end_ps=t.end_ps + k)
            for k in (n * track[-1].end_ps for n in range(300)) for t in track]  # fmt: skip
    found = joined(many)
    assert len(found) <= 20_000 < len(many)
    assert sum(t.length_ps for t in found) == sum(t.length_ps for t in many)
    assert all(a.end_ps <= b.start_ps for a, b in pairwise(found))


def test_the_numbers_of_the_chip_say_where_they_come_from() -> None:
    chip = result().pod.chip
    rows = {row.name: row for row in chip_sources(chip)}
    assert all(row.origin.strip(".") for row in rows.values())
    changed = {row.name: row for row in chip_sources(chip.replace(hbm_bandwidth="1 TB/s"))}
    assert [name for name in rows if rows[name] != changed[name]] == ["hbm_bandwidth"]
    assert changed["hbm_bandwidth"].kind == "given by you"


def test_runs_like_it_are_ranked() -> None:
    alike = [float(run.likeness) for run in runs_like(result())]
    assert alike == sorted(alike, reverse=True)
    assert alike
    assert runs_like(result("replay")) == []


@pytest.mark.parametrize("kind", ["dense", "experts", "pipeline", "replay"])
def test_the_page_says_where_nothing_like_it_was_measured(kind: str) -> None:
    expected = result(kind).error_range
    page = report_page(result(kind))
    assert ("runs like this" in page) is (expected is not None and expected.measured)
    if expected is None:
        assert "no range: nothing like it was measured" in page
    elif not expected.measured:
        assert "8 of 10 runs; nothing like it was measured" in page
    assert ("so the prediction has no range" in page) is (expected is None)


def test_limits_and_simulated_changes_are_in_the_page() -> None:
    found = result()
    advice = found.advice()
    page = report_page(found, advice=advice)
    assert "Each change below was simulated" in page
    assert all(str(escape(limit.resource)) in page for limit in advice.limits)
    for kind in ChangeKind:
        assert all(str(escape(str(change))) in page for change in advice.of(kind)[:CHANGES_SHOWN])
    assert "Each change below was simulated" not in report_page(found)


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
def test_labels_of_others_are_text(label: str) -> None:
    one = labelled(label)
    page = report_page(one)
    found = Page(page)
    assert [name for name in found.ids if name in SECTIONS] == SECTIONS
    assert found.tags.count("script") == 3
    assert "img" not in found.tags
    assert not found.handlers
    assert data_of(page)["step_s"] == one.step_time_s
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\u202a-\u202e\u2066-\u2069]", page)
    assert "x" * (LONGEST_SENTENCE + 1) not in page
    assert plain(label) == label or "\ufffd" in plain(label) or "…" in plain(label)


@pytest.mark.parametrize("label", HOSTILE, ids=range(len(HOSTILE)))
def test_labels_of_others_break_no_table_trace_or_figure(label: str) -> None:
    one = labelled(label)
    files = render_files(one, None, html=False)
    for name, content in files.items():
        if name.endswith(".csv"):
            table = list(csv.reader(StringIO(content.decode(), newline="")))
            assert len({len(row) for row in table}) == 1, name
            assert not [cell for row in table for cell in row if cell[:1] in "=@+" and cell]
        elif name.endswith(".svg"):
            root = ElementTree.fromstring(content)
            assert float(root.attrib["width"].removesuffix("pt")) < 1200, name
    trace = json.loads(gzip.decompress(files["trace.json.gz"]))
    names = [event["name"] for event in trace["traceEvents"]]
    assert not [name for name in names if re.search("[\x00-\x1f\u202a-\u202e]", name)]


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


@pytest.mark.parametrize("face", ["#0b3c5d", "#cfe6f4", "#ffffff", "#000000"])
def test_text_on_a_fill_can_be_read(face: str) -> None:
    """By the contrast that WCAG 2 asks of text, 4.5, on either theme."""

    def luminance(colour: str) -> float:
        parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    for each in (face, dark_face(face)):
        light, dark = sorted((luminance(each), luminance(ink_on(each))), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5
