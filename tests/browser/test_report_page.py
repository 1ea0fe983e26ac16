"""Reports in headless Chromium: no request, no error, and figures that are drawn."""

import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from replays import small_replay
from reports import report_page
from twins import compared

import tpusim as ts
from tpusim.base import format_seconds
from tpusim.report import write_check, write_training
from tpusim.results import Result
from tpusim.training import duration, failure_advice, train_step

pytestmark = pytest.mark.browser
SECTIONS = [
    *("headline", "plan", "time", "advice", "timeline", "use", "memory"),
    *("links", "roofline", "runs", "sources"),
]
WIDTHS = {"desktop": 1200, "phone": 390}
FIRST_SCREEN = 900
"""The height of a window, whose answers are visible without scrolling."""
PAPER = 718
"""The width of a sheet of A4 between its margins."""
CLIPPED = (
    f"[...document.querySelectorAll('table')].filter(each => each.offsetWidth > {PAPER}).length"
)
"""The number of tables that are wider than the paper."""
ROOT = Path(__file__).parents[2]


@cache
def result(kind: str) -> Result:
    if kind == "replay":
        return small_replay()
    if kind == "flagship":
        run = ts.read_run(str(ROOT / "experiments/bert_480b/run.toml"))
        return ts.simulate(run.model, run.plan, run.pod)
    model = ts.models.Transformer(layers=8, embed=1024, mlp=4096, heads=8, vocab=8192)
    keys: dict[str, Any] = {"mesh": {"stage": 4, "fsdp": 4}, "microbatches": 8}
    if kind == "experts":
        model, keys = (
            model.replace(experts=8, experts_per_token=2),
            {"mesh": {"expert": 4, "fsdp": 4}},
        )
    plan = ts.Plan(seq_len=512, global_batch=64, **keys)
    return ts.simulate(model, plan, ts.Slice("v5e", "4x4"))


kinds = pytest.mark.parametrize("kind", ["flagship", "pipeline", "experts", "replay"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("needs Chromium; apt-get install chromium, or set CHROMIUM to its path")
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


class Opened:
    """A page in the browser, and what it asked for and complained of."""

    def __init__(self, browser: Any, file: Path, width: int, **options: Any) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        self.said: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())

    def images(self) -> list[int]:
        """The widths of the images that were decoded, in pixels; 0 where one is broken."""
        found = self.page.evaluate("[...document.images].map(each => each.naturalWidth)")
        return [int(width) for width in found]

    def text(self, place: str) -> str:
        return str(self.page.locator(place).inner_text())


def opened(browser: Any, folder: Path, text: str, width: int = 1200, **options: Any) -> Opened:
    file = folder / "report.html"
    file.write_text(text, "utf-8")
    return Opened(browser, file, width, **options)


def bounds_of(element: Any) -> dict[str, float]:
    found: dict[str, float] = element.bounding_box()
    return found


@kinds
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_opens_without_a_request_or_a_complaint(
    browser: Any, tmp_path: Path, kind: str, width: int, scheme: str
) -> None:
    one = result(kind)
    at = opened(browser, tmp_path, report_page(one), width, color_scheme=scheme)
    assert len(at.requests) == 1
    assert at.said == []
    for section in SECTIONS:
        assert at.page.locator(f"#{section}").is_visible(), section
    assert f"How fast?\n{format_seconds(one.step_time_s)} per step" in at.text("#headline")
    questions = at.page.locator(".answers > div")
    ends = [box["y"] + box["height"] for box in map(bounds_of, questions.all())]
    assert width == WIDTHS["phone"] or max(ends) <= FIRST_SCREEN
    assert at.page.evaluate("document.documentElement.scrollWidth") <= width
    assert min(at.images()) >= 600
    at.page.close()


@kinds
def test_a_part_of_the_time_opens_without_a_script(browser: Any, tmp_path: Path, kind: str) -> None:
    at = opened(browser, tmp_path, report_page(result(kind)), java_script_enabled=False)
    first = at.page.locator("#tab-kind details").first
    first.locator("summary").click()
    assert first.get_attribute("open") is not None
    at.page.locator("label[for=view-operation]").click()
    assert at.page.locator("#tab-operation").is_visible()
    assert not at.page.locator("#tab-kind").is_visible()
    at.page.close()


def test_printed_figures_fit_the_paper_and_light_colours_are_used(
    browser: Any, tmp_path: Path
) -> None:
    at = opened(browser, tmp_path, report_page(result("experts")), PAPER, color_scheme="dark")
    at.page.emulate_media(media="print")
    widths = at.page.evaluate("[...document.images].map(each => each.offsetWidth)")
    assert max(widths) <= PAPER
    ink = at.page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--paper')")
    assert ink.strip() == "#ffffff"
    assert at.page.locator("#sources td").first.is_visible()
    assert at.page.evaluate(CLIPPED) == 0
    assert at.page.pdf(format="A4", print_background=True).startswith(b"%PDF")
    assert at.said == []
    at.page.close()


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("kind", ["asynchronous", "experts"])
def test_a_replay_against_its_plan(browser: Any, tmp_path: Path, kind: str, width: int) -> None:
    found = compared(kind)
    write_check(found, tmp_path)
    at = Opened(browser, tmp_path / "report.html", width)
    assert len(at.requests) == 1
    assert at.said == []
    facts = at.text("#headline")
    assert f"Plan\n{format_seconds(found.plan_step_s)}" in facts
    assert f"Program\n{format_seconds(found.program_step_s)}" in facts
    assert at.page.evaluate("document.documentElement.scrollWidth") <= width
    for section in ("headline", "time", "differences", "memory", "collectives"):
        assert at.page.locator(f"#{section}").is_visible(), section
    at.page.close()


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("fails", [True, False])
def test_a_training_run(browser: Any, tmp_path: Path, fails: bool, width: int, scheme: str) -> None:
    step = result("experts")
    assert isinstance(step, ts.PlanResult)
    failures = {"runs": 20, "causes": {"job": 4, "machine": 0.1}, "spares": 0} if fails else None
    run = ts.TrainingRun(
        steps=500_000, checkpoints=ts.Checkpoints(every=5000), failures=failures,
        stragglers={"pauses": {"per_hour": 2, "seconds": 0.5}, "runs": 5},
    )  # fmt: skip
    found = train_step(step, run)
    write_training(found, tmp_path, advice=failure_advice(found) if fails else None)
    at = Opened(browser, tmp_path / "report.html", width, color_scheme=scheme)
    assert len(at.requests) == 1
    assert at.said == []
    failing = ("forms", "advice") if fails else ()
    for section in ("headline", "life", "losses", *failing, "stragglers", "step", "plan"):
        assert at.page.locator(f"#{section}").is_visible(), section
    assert f"How long does it take?\n{duration(found.wall_s.value)}\n" in at.text("#headline")
    assert at.page.evaluate("document.documentElement.scrollWidth") <= width
    assert min(at.images()) >= 600
    assert len(at.images()) == 1 + fails
    at.page.set_viewport_size({"width": PAPER, "height": 900})
    at.page.emulate_media(media="print")
    assert at.page.evaluate(CLIPPED) == 0
    at.page.close()
