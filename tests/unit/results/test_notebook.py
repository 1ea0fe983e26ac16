"""What a notebook shows: short texts and HTML of results, plans and slices, escaped."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest

import tpusim as ts

HOSTILE = "<script>alert(1)</script>\n\x1b[31m\u202e" + "x" * 500


class Texts(HTMLParser):
    """The tags and the texts of HTML, and whether every tag is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def result() -> ts.PlanResult:
    plan = ts.Plan(mesh={"fsdp": 16}, seq_len=2048, global_batch=32, rules={"mlp": "fsdp"})
    model = replace(ts.models.load("llama3-8b", layers=2), name=HOSTILE)
    return ts.simulate(model, plan, "v5e-16")


def test_the_text_of_a_result_is_short(result: ts.PlanResult) -> None:
    text = repr(result)
    assert len(text.splitlines()) < 10
    assert max(map(len, text.splitlines())) < 200
    assert text.startswith("<PlanResult: <script>")
    assert f"MFU {result.mfu:.1%}" in text


def test_every_part_of_a_session_shows_itself_escaped(result: ts.PlanResult) -> None:
    for shown in (result, result.plan, result.pod):
        html = shown._repr_html_()
        found = Texts(html)
        assert not found.open
        assert found.tags <= {"div", "strong", "table", "tr", "th", "td"}
        assert len(html) < 10_000


def test_the_bar_is_the_step(result: ts.PlanResult) -> None:
    html = result._repr_html_()
    widths = [float(part.split("%")[0]) for part in html.split("width:")[1:] if "%" in part[:8]]
    assert len(widths) == sum(seconds > 0 for seconds in result.breakdown_s.values())
    assert sum(widths) == pytest.approx(100, abs=0.05)


def test_a_plan_shows_what_is_not_the_default() -> None:
    plan = ts.Plan(mesh={"fsdp": 4}, global_batch=8, remat="minimal")
    rows = "".join(Texts(plan._repr_html_()).texts)
    assert "remat" in rows
    assert "vocab_tiles" not in rows
