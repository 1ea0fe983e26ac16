"""What a notebook shows: short texts and HTML of results, plans and slices, escaped."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest

import tpusim as ts
from tpusim.base.short_repr import ShortRepr

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


def shown_values() -> list[object]:
    model = ts.models.Transformer(layers=2, embed=128, mlp=256, heads=4, vocab=500, name="small")
    plan = ts.Plan(mesh={"fsdp": 16}, seq_len=64, global_batch=32)
    pod = ts.Slice("v5e", "4x4")
    space = ts.PlanSpace(base=plan, slices=[pod], axes=("data", "fsdp"))
    result = ts.simulate(model, plan, pod)
    advice = result.advice(quick=True)
    return [
        model, ts.models.load("mixtral-8x7b"), plan, pod, space, result, advice,
        advice.changes[0], ts.search(model, space, workers=1), ts.compare(result, result),
        ts.scaling(model, plan, pod, chips=[16, 32]), ts.explain_lines(result),
        ts.explain_collectives(result), ts.explain_placement(model, plan, pod),
        ts.explain_pipeline(result), ts.train(model, plan, pod, ts.TrainingRun(steps=100)),
        ts.Space(base=plan, axes=("data", "fsdp"), vary={"remat": ["full", "none"]}),
        ts.Input(kind="jpeg", workers=32), pod.chip, ts.TrainingRun(tokens=1e12, price=1.2),
    ]  # fmt: skip


@pytest.mark.thorough
def test_every_value_has_a_short_repr_and_a_cell() -> None:
    for value in shown_values():
        text = repr(value)
        assert len(text.splitlines()) < 10, type(value)
        page = value._repr_html_()  # type: ignore[attr-defined]
        assert page.startswith("<"), type(value)
        assert len(page) < 20_000, type(value)
        assert "<script" not in page


def test_a_cell_shows_what_is_given() -> None:
    space, feed, chip, run = (
        "".join(Texts(one._repr_html_()).texts) for one in shown_values()[-4:]
    )
    assert "'remat': ['full', 'none']" in space
    assert "placements" not in space
    assert "workers32" in feed
    assert "prefetch" not in feed.replace("batches prefetched", "")
    assert "tokens1000000000000.0" in run
    assert "checkpoints" not in run
    assert "bf16 197" in chip
    assert "4 dimensions" not in chip


@pytest.mark.thorough
def test_what_prints_long_is_cut_in_lines_and_columns() -> None:
    for value in shown_values():
        if isinstance(value, ShortRepr):
            assert max(map(len, repr(value).splitlines())) <= 163
            lines = str(value).splitlines()
            assert repr(value).startswith(lines[0][:160])
            assert (f"{len(lines) - 8} more lines" in repr(value)) == (len(lines) > 8)


@pytest.mark.thorough
def test_a_search_says_what_is_best_and_whether_it_is_proved() -> None:
    (found,) = [each for each in shown_values() if type(each).__name__ == "SearchResult"]
    first, best = repr(found).splitlines()[:2]
    assert first.startswith("best step_time of ") and ": proved; " in first  # noqa: PT018
    assert " on v5e:4x4: mesh " in best
