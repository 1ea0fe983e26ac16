"""The report of a training run: its page has the numbers of the result, and its files are whole."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from drawings import drawing
from extent import thorough

import tpusim as ts
from tpusim.base import FileError, PlanError, format_seconds
from tpusim.base.units import format_amount, format_dollars
from tpusim.failures import Failures
from tpusim.report import interval_data, training_data, write_training
from tpusim.report.html.page import POLICY
from tpusim.report.html.training_page import training_page
from tpusim.report.training_files import training_files, training_json, training_text
from tpusim.results import PICO
from tpusim.training import (
    Checkpoints,
    Evaluations,
    HostPauses,
    RunAdvice,
    SlowChips,
    Stragglers,
    TrainingResult,
    TrainingRun,
    duration,
    failure_advice,
    save_interval,
    train_step,
)

MODEL = ts.models.Transformer(layers=4, embed=512, mlp=2048, heads=4, vocab=1000)
PLAN = ts.Plan(mesh={"fsdp": 64}, seq_len=128, global_batch=128)
STEP = ts.simulate(MODEL, PLAN, ts.Slice("v4", "4x4x4"))
SAVES = Checkpoints(every=100, mode="blocking", time_s=20.0)
FAILS = Failures(
    runs=12, slowdown=1.02, spares=0, compile_s=300.0,
    causes={"machine": {"per_day": 0.2, "repair_s": 10_000}, "job": 4},
)  # fmt: skip
NEVER = dict.fromkeys(("machine", "cable", "switch", "job"), 0)
PLAIN = TrainingRun(
    steps=50_000, step_time_s=10.0, compile_s=100.0, checkpoints=SAVES,
    evaluations=Evaluations(every=1000, examples=1000),
)  # fmt: skip
FAILING = replace(PLAIN, evaluations=None, failures=FAILS)
BARE = TrainingRun(steps=10, step_time_s=1.0, initialization_s=0.0, compile_s=0.0, warm_up_s=0.0)
TIERS = Checkpoints(every=100, memory_every=10, time_s=20.0)
RUNS: Mapping[str, TrainingRun] = {
    "plain": PLAIN,
    "bare": BARE,
    "failing": FAILING,
    "tiers": replace(FAILING, checkpoints=TIERS),
    "unsaved": replace(PLAIN, failures=Failures(runs=20, causes={"job": 0.5}), checkpoints=None),
    "never": replace(PLAIN, failures=Failures(runs=5, causes=NEVER)),
    "straggling": replace(
        PLAIN,
        stragglers=Stragglers(
            pauses=HostPauses(per_hour=2, seconds=30.0),
            chips=SlowChips(time_share=0.1, slowdown=1.3),
            runs=5,
        ),
    ),
}
SECTIONS: Mapping[str, list[str]] = {
    "plain": ["losses"],
    "bare": [],
    "failing": ["losses", "forms"],
    "tiers": ["losses", "forms"],
    "unsaved": ["losses", "forms"],
    "never": ["losses", "forms"],
    "straggling": ["losses", "stragglers"],
}
kinds = pytest.mark.parametrize("kind", RUNS)
drawn = pytest.mark.parametrize("kind", ["plain", thorough("failing")])
"""Runs whose figures are drawn."""


@cache
def result(kind: str) -> TrainingResult:
    return train_step(STEP, RUNS[kind])


@cache
def advice() -> RunAdvice:
    return failure_advice(result("failing"))


@cache
def files(kind: str) -> dict[str, bytes]:
    return training_files(result(kind))


def page_of(found: TrainingResult, changes: RunAdvice | None = None) -> str:
    """The page, with a stand-in for each drawing."""
    drawn = ("training.svg", "failures.svg", "interval.svg")
    return training_page(found, changes, dict.fromkeys(drawn, b"<svg/>"))


@cache
def page(kind: str, *, advised: bool = False) -> str:
    return page_of(result(kind), advice() if advised else None)


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def section(html: str, name: str) -> str:
    found = re.search(rf'<section id="{name}".*?</section>', html, re.S)
    assert found is not None, name
    return found[0]


def rows(html: str) -> list[list[str]]:
    """The cells of the rows of all tables, without their heads."""
    found = re.findall(r"<tr>(.*?)</tr>", html, re.S)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.S) for row in found]
    return [[unescape(cell) for cell in row] for row in cells if row]


def cards(html: str) -> dict[str, str]:
    """The text of each answer of the first screen, by its question."""
    found = re.findall(r"<div><h2>(.*?)</h2>(.*?)</div>", section(html, "headline"), re.S)
    return {question: text_of(rest) for question, rest in found}


def facts_of(html: str) -> dict[str, str]:
    found = re.findall(r"<div><dt>(.*?)</dt><dd>(.*?)</dd></div>", html, re.S)
    return {name: text_of(rest) for name, rest in found}


@kinds
def test_the_first_screen_has_the_numbers_of_the_result(kind: str) -> None:
    found, shown = result(kind).facts(), cards(page(kind))
    wall, cost = found["wall_s"], found["cost_usd"]
    assert shown["How long does it take?"].startswith(
        f"{duration(wall['value'])} {duration(wall['low'])} to {duration(wall['high'])}, by "
    )
    steps = found["buckets_s"]["GOODPUT"]["value"]
    assert shown["How much of it is training?"].startswith(
        f"Goodput {steps / wall['value']:.1%} {duration(steps)} of steps"
    )
    for number in (cost["value"], cost["low"], cost["high"]):
        assert format_dollars(number) in shown["What does it cost?"]
    kwh = {end: each / 3.6e6 for end, each in found["energy_j"].items()}
    for values in (found["chip_hours"], kwh, found["co2_kg"]):
        amounts = {end: format_amount(each) for end, each in values.items()}
        ends = "{value} ({low} to {high})".format(**amounts)
        assert ends in shown["What does it cost?"]


@kinds
def test_the_losses_and_the_steps_are_the_whole_run(kind: str) -> None:
    found = result(kind).facts()
    losses = rows(section(page(kind), "losses")) if SECTIONS[kind] else []
    buckets = {row[-1]: row for row in losses if len(row) == 5 and row[-1].isupper()}
    expected = {
        name: each
        for name, each in found["buckets_s"].items()
        if name != "GOODPUT" and each["high"]
    }
    assert buckets.keys() == expected.keys()
    assert [*buckets] == sorted(expected, key=lambda name: -expected[name]["value"])
    for name, (parts, spent, share, ends, _) in buckets.items():
        each = expected[name]
        assert spent == duration(each["value"])
        assert share == f"{each['value'] / found['wall_s']['value']:.1%}"
        assert ends == f"{duration(each['low'])} to {duration(each['high'])}"
        assert parts if each["value"] else not parts
    shares = [float(row[2].rstrip("%")) for row in buckets.values()]
    assert sum(shares) + 100 * found["goodput"] == pytest.approx(100, abs=0.4)
    if losses:
        first = cards(page(kind))["Where is time lost?"]
        assert "shares of the wall time" in first


def test_the_largest_loss_is_named_first() -> None:
    found = result("failing")
    assert found.failures is not None
    lost = {str(name): each for name, each in found.failures.spent_s.items() if name != "steps"}
    largest = max(lost, key=lambda name: lost[name])
    share = f"{lost[largest] / found.wall_s.value:.1%}"
    said = cards(page("failing"))["Where is time lost?"]
    assert said.startswith(f"{largest[0].upper()}{largest[1:]}: {share}")
    rate = result("plain").buckets["CUSTOM_BADPUT_EVENTS"].value / result("plain").wall_s.value
    evaluated = text_of(section(page("plain"), "losses"))
    assert f"{rate:.1%}" in evaluated
    assert "evaluation" in evaluated


def test_waits_for_input_are_a_loss() -> None:
    found = result("plain")
    steps = found.buckets["GOODPUT"]
    waiting = {"GOODPUT": steps.times(0.75), "DATA_LOADING_SYNC": steps.times(0.25)}
    html = page_of(replace(found, buckets={**found.buckets, **waiting}))
    share = steps.value / 4 / found.wall_s.value
    assert cards(html)["Where is time lost?"].startswith(f"Waits for input: {share:.1%}")
    lost = duration(steps.value / 4)
    assert rows(section(html, "losses"))[0][:2] == ["waits for input", lost]


def test_a_chip_without_price_or_power_costs_chip_hours() -> None:
    chip = STEP.pod.chip.replace(price=None, power=None)
    bare = replace(STEP, pod=ts.Slice(chip, "4x4x4"))
    hours = train_step(bare, PLAIN).chip_hours
    said = cards(page_of(train_step(bare, PLAIN)))["What does it cost?"]
    value, low, high = map(format_amount, (hours.value, hours.low, hours.high))
    assert said == f"{value} chip-hours {low} to {high}"


def test_causes_and_facts_are_those_of_the_random_runs() -> None:
    found = result("failing").failures
    assert found is not None
    shown = [row for row in rows(section(page("failing"), "losses")) if not row[-1].isupper()]
    wall = result("failing").wall_s.value
    plurals = {"machine": "machines", "job": "job", "cable": "cables", "switch": "switches"}
    assert shown == [
        [each.name, f"{each.units:,} {plurals[each.unit]}", f"{each.failures:,.2f}",
         duration(each.lost_s), f"{each.lost_s / wall:.1%}"]
        for each in found.causes
    ]  # fmt: skip
    shown_facts = facts_of(page("failing"))
    mttf = duration(float(found.mttf_s or 0))
    total = sum(each.failures for each in found.causes)
    assert shown_facts["Failures per run"] == f"{total:,.1f} one every {mttf}"
    assert shown_facts["Steps done again"] == f"{found.lost_steps:,.0f} per run"
    assert shown_facts["Restart"].startswith(duration(found.restart_s))
    assert shown_facts["Spares used"].endswith("; 0 there")
    assert shown_facts["Checkpoints"] == f"every 100 steps {duration(1000.0)} of steps"
    start = sum(length for name, length in result("plain").activities_s().items()
                if name in ("initialization", "compilation", "warm-up"))  # fmt: skip
    assert facts_of(page("plain"))["Start"] == f"{duration(start)} until the first step"


def test_closed_forms_stand_beside_the_simulation() -> None:
    found, best = result("failing").failures, save_interval(result("failing"))
    assert found is not None
    assert best is not None
    shown = section(page("failing"), "forms")
    rate, stop, every = 1 / float(found.mttf_s or 0), 20.0, 100 * 10.0
    ettr = (1 - rate * (found.restart_s + every / 2)) / (1 + stop / every)
    assert rows(shown) == [
        ["Wall time", duration(found.expected_s),
         f"{duration(found.mean_s)} ± {duration(found.error_s)}"],
        ["Useful over wall time (E[ETTR])", f"{ettr:.1%}", f"{result('failing').goodput:.1%}"],
    ]  # fmt: skip
    assert found.facts()["closed_form_ettr"] == pytest.approx(ettr)
    assert f"Checkpoints {best}." in text_of(shown)
    assert f"(Young {best.young:,.0f}, Daly {best.daly:,.0f} steps)" in text_of(shown)


@pytest.mark.parametrize("kind", ["tiers", "unsaved", "never"])
def test_the_formula_of_one_tier_is_for_runs_with_one(kind: str) -> None:
    found = result(kind).failures
    assert found is not None
    assert found.ettr is None
    assert interval_data(result(kind)) is None
    shown = section(page(kind), "forms")
    assert [row[0] for row in rows(shown)] == ["Wall time"]
    assert ("Checkpoints every" in shown) == (kind == "tiers")


def test_the_curve_is_least_at_the_best_interval() -> None:
    found, best = result("failing"), save_interval(result("failing"))
    curve = interval_data(found)
    assert curve is not None
    assert best is not None
    assert found.failures is not None
    times = dict(curve.points)
    assert min(times, key=lambda steps: times[steps]) == best.every
    assert {name: steps for name, steps, _ in curve.marks} == {
        "as given": 100, "best": best.every, "Young": round(best.young), "Daly": round(best.daly),
    }  # fmt: skip
    assert all(times[steps] == seconds for _, steps, seconds in curve.marks)
    assert times[100] == best.given_s == pytest.approx(found.failures.expected_s)
    assert curve.simulated == (100, found.failures.mean_s, found.failures.error_s)


def test_without_advice_the_best_interval_is_the_change() -> None:
    best = save_interval(result("failing"))
    assert best is not None
    gain = f"Saves {1 - best.expected_s / best.given_s:.1%}"
    walls = f"{duration(best.given_s)} → {duration(best.expected_s)}, in closed form"
    said = cards(page("failing"))["What to change?"]
    assert said.startswith(f"{gain} {walls}")
    assert said.endswith(f"train.checkpoints.every={best.every}")
    assert "What to change?" not in cards(page("plain"))
    already = replace(SAVES, every=best.every)
    at_best = train_step(STEP, replace(RUNS["failing"], checkpoints=already))
    assert "What to change?" not in cards(page_of(at_best))


def test_advice_is_on_the_page_and_in_the_files() -> None:
    found, best = advice(), advice().changes[0]
    html = page("failing", advised=True)
    said = cards(html)["What to change?"]
    base, less = found.base.mean_s, best.mean_s
    assert said.startswith(
        f"Saves {1 - less / base:.1%} {duration(base)} → {duration(less)}, simulated"
    )
    ((key, value),) = best.settings.items()
    assert said.endswith(f"{key}={json.dumps(value)}")
    shown = rows(section(html, "advice"))
    assert [row[0] for row in shown] == ["as given", *(each.title for each in found.changes)]
    assert [row[1] for row in shown[1:]] == [duration(each.mean_s) for each in found.changes]


def test_text_and_json_have_the_advice_below() -> None:
    facts = json.loads(training_json(result("failing"), advice()))
    assert facts.pop("advice") == json.loads(json.dumps(advice().facts()))
    assert facts == json.loads(training_json(result("failing")))
    assert training_text(result("failing"), advice()) == f"{result('failing')}\n\n{advice()}"


def test_no_change_that_helps_is_said() -> None:
    nothing = replace(advice(), changes=())
    html = page_of(result("failing"), nothing)
    said = cards(html)["What to change?"]
    assert said == "Nothing found no single change that was tried shortens the run"
    assert len(rows(section(html, "advice"))) == 1


def test_stragglers_are_on_the_page() -> None:
    found = result("straggling").stragglers
    assert found is not None
    shown = section(page("straggling"), "stragglers")
    told = facts_of(shown)
    assert told["S"].startswith(f"{found.factor:.3f}")
    assert told["Wasted"].startswith(f"{1 - 1 / found.factor:.1%}")
    assert told["Step"].startswith(format_seconds(10.0 * found.factor))
    words = {"host pauses": "pauses", "slow chips": "chips"}
    for name, without, gain in rows(shown):
        factor = found.without[words.pop(name)]
        assert (without, gain) == (f"{factor:.3f}", f"{1 - factor / found.factor:.1%}")
    assert not words


@kinds
def test_the_step_is_that_of_the_simulation(kind: str) -> None:
    shown = text_of(section(page(kind), "step"))
    assert f"How fast? {format_seconds(STEP.step_time_s)} per step" in shown
    assert f"MFU {STEP.mfu:.1%}" in shown
    length = format_seconds(result(kind).step_time_s)
    assert f"The run takes the step time that it gives, {length}." in shown
    assert f"{result(kind).steps:,} steps of" in text_of(page(kind))


@kinds
def test_no_section_is_empty_and_each_is_linked(kind: str) -> None:
    html = page(kind)
    names = re.findall(r'<section id="([^"]*)"', html)
    assert names == ["headline", "life", *SECTIONS[kind], "step", "plan"]
    assert re.findall(r'<a href="#([^"]*)"', html) == names
    for name in names:
        content = re.sub(r"<h2>.*?</h2>", "", section(html, name))
        assert text_of(content) or "<img" in content, name
    assert not re.search(r"<(tbody|ul|dl[^>]*|dd|li|p|td)>\s*</", html)
    assert "None" not in text_of(html)
    assert "nan" not in text_of(html)


@drawn
def test_a_page_is_small_and_asks_for_nothing(kind: str) -> None:
    html = files(kind)["report.html"].decode()
    assert len(html) < 1e6
    assert "<script" not in html
    assert POLICY in unescape(html)
    links = re.findall(r'(?:href|src)="([^"]*)"', html)
    assert all(link.startswith(("#", "data:")) for link in links)


@drawn
def test_every_file_is_written_and_the_same_twice(kind: str, tmp_path: Path) -> None:
    write_training(result(kind), tmp_path / "out")
    found = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    assert found == files(kind)
    figures = ["training"]
    figures += ["failures"] if result(kind).failures else []
    figures += ["interval"] if kind == "failing" else []
    assert found.keys() == {
        "training.txt", "training.json", "report.html",
        *(f"{name}.{ending}" for name in figures for ending in ("png", "svg")),
    }  # fmt: skip
    assert found["training.txt"].decode() == f"{result(kind)}\n"
    assert json.loads(found["training.json"]) == json.loads(json.dumps(result(kind).facts()))
    again = training_files(train_step(STEP, RUNS[kind]))
    assert again == found


def test_the_guide_names_every_file() -> None:
    guide = (Path(__file__).parents[3] / "docs/user_guide.md").read_text("utf-8")
    (told,) = (line for line in guide.splitlines() if line.startswith("`--out` writes `training."))
    named = {*re.findall(r"`([a-z]+\.[a-z*]+)`", told)}
    assert named == {re.sub(r"(png|svg)$", "*", name) for name in files("failing")}


def test_the_figures_of_the_page_are_those_of_the_files() -> None:
    for kind, shown in (("failing", ["failures", "interval"]), ("plain", ["training"])):
        html = files(kind)["report.html"].decode()
        sources = re.findall(r'<img src="data:image/svg\+xml,([^"]*)"', html)
        assert len(sources) == len(shown)
        for name, source in zip(shown, sources, strict=True):
            assert drawing(unquote(source).encode()) == drawing(files(kind)[f"{name}.svg"])


def test_the_progress_of_a_run_that_fails_is_that_of_its_life() -> None:
    """Not of the run without failures, which ends long before."""
    found = result("failing")
    assert found.failures is not None
    progress = training_data(found).progress
    assert progress[-1] == (found.failures.life.total_ps * PICO, found.steps)
    assert progress[-1][0] > 1.1 * found.timeline.total_ps * PICO
    assert min(after[1] - before[1] for before, after in pairwise(progress)) < 0


def test_a_name_cannot_write_into_the_page() -> None:
    evil = replace(STEP, model=MODEL.replace(name="<b>x</b>"))
    assert "<b>x</b>" not in page_of(train_step(evil, PLAIN))


def test_what_does_not_fit_is_said() -> None:
    large = ts.simulate(
        MODEL.replace(layers=400, embed=16384), PLAN.replace(mesh={"data": 64}), STEP.pod
    )
    assert not large.fits
    assert "The step does not fit in HBM." in page_of(train_step(large, PLAIN))
    assert "does not fit" not in text_of(page("plain"))


def test_a_wrong_folder_and_a_wrong_result_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("kept", "utf-8")
    with pytest.raises(FileError, match="file is a file; give a folder"):
        write_training(result("bare"), place)
    assert place.read_text("utf-8") == "kept"
    wrong: Any = STEP
    with pytest.raises(PlanError, match=r"write write_training\(result\), with a TrainingResult"):
        write_training(wrong, tmp_path / "out")
    assert not (tmp_path / "out").exists()


SCRIPT = """
import sys
import tpusim as ts
from tpusim.report import write_training
plan = ts.Plan(mesh={"fsdp": 16}, seq_len=64, global_batch=32)
model = ts.models.Transformer(layers=2, embed=128, mlp=256, heads=4, vocab=500)
found = ts.train(model, plan, "v5e-16", ts.TrainingRun(steps=10))
write_training(found, sys.argv[1], html=False)
print([name for name in sys.modules if name.startswith(("tpusim.report.html", "jinja2"))])
"""


@pytest.mark.thorough
def test_files_without_the_page_load_nothing_of_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "out")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert ran.stdout == "[]\n"
    assert not (tmp_path / "out/report.html").exists()
    assert (tmp_path / "out/training.png").exists()
