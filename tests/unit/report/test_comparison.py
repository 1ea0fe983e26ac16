"""Steps side by side: what is said, written and drawn, and a sentence for what is no step."""

import csv
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from commands import said
from plans import plan_of, small
from replays import small_replay
from reports import ComparedStep, read_step, step_of

import tpusim as ts
from tpusim.base import FileError, PlanError
from tpusim.base.plain_text import visible_lines
from tpusim.hardware import Slice
from tpusim.report import (
    Comparison,
    StepDifference,
    document,
    plot_waterfall,
    waterfall_data,
    write_comparison,
)
from tpusim.results import Result
from tpusim.simulation import simulate

POD = Slice("v5e", "4x4")


def result(**changes: object) -> Result:
    mesh = {"fsdp": 4, "tensor": 4}
    return simulate(small(layers=4, embed=1024, mlp=4096), plan_of(mesh, **changes), POD)


def step(name: str, **parts: int) -> ComparedStep:
    """A step of known parts, in picoseconds."""
    whole = sum(parts.values())
    return ComparedStep(
        title=name, source="", step_ps=whole, breakdown_ps=parts, phases_ps={"forward": whole},
        mfu=None, hfu=0.5, tokens_per_s=None, hbm_peak_bytes=1.0, hbm_bytes=2.0, fit="fits",
        settings={},
    )  # fmt: skip


ONE, OTHER = step("one", matmul=700, bubble=300), step("other", matmul=400, attention=650)


def test_parts_are_worked_by_hand() -> None:
    found = ts.compare(ONE, OTHER)
    assert found.difference_ps == 50
    assert [*found.parts_ps.items()] == [("attention", 650), ("matmul", -300), ("bubble", -300)]
    assert ts.compare(OTHER, ONE).parts_ps == {"attention": -650, "matmul": 300, "bubble": 300}
    assert str(found.differences[0]) == (
        "B takes 5.0% longer than A (1.05 ns against 1 ns); the largest cause is attention "
        "(+650 ps)"
    )
    assert str(ts.compare(ONE, ONE)).startswith("compare     B takes as long as A")
    triple = step("triple", matmul=3000)
    assert "B takes 3.0 times as long as A" in str(ts.compare(ONE, triple))


def test_the_bars_of_the_figure_lead_from_one_step_to_the_other() -> None:
    bars = waterfall_data(ts.compare(ONE, OTHER).differences[0])
    assert [(bar.name, bar.start_ps, bar.end_ps) for bar in bars] == [
        ("A", 0, 1000),
        ("attention", 1000, 1650),
        ("matmul", 1650, 1350),
        ("bubble", 1350, 1050),
        ("B", 0, 1050),
    ]


def test_many_causes_end_in_one_bar_that_keeps_the_sum() -> None:
    many = {f"exposed {chr(97 + n)}": 2**n for n in range(20)}
    (found,) = ts.compare(step("none", matmul=5), step("many", matmul=5, **many)).differences
    bars = waterfall_data(found)
    assert bars[-2].name == "other causes"
    assert bars[-2].end_ps == bars[-1].end_ps == 5 + 2**20 - 1
    assert all(one.end_ps == other.start_ps for one, other in pairwise(bars[:-1]))


def test_the_figure_has_a_panel_for_each_step_but_the_first() -> None:
    found = ts.compare(ONE, OTHER, step("triple", matmul=3000))
    axes = plot_waterfall(found)
    assert [ax.get_title(loc="left") for ax in axes] == [
        "From A, one, to B, other",
        "From A, one, to C, triple",
    ]
    labels = [label.get_text() for label in axes[0].get_yticklabels()]
    assert labels == ["A", "attention", "matmul", "bubble", "B"]


def test_an_axis_that_begins_late_says_so() -> None:
    near = step("near", matmul=10**12 + 10**9)
    (ax,) = plot_waterfall(ts.compare(step("far", matmul=10**12), near))
    assert ax.get_xlim()[0] > 0
    assert "the axis begins at" in ax.get_xlabel()
    (ax,) = plot_waterfall(ts.compare(ONE, step("triple", matmul=3000)))
    assert ax.get_xlim()[0] == 0
    assert "begins" not in ax.get_xlabel()


def test_the_settings_that_differ_are_said() -> None:
    found = ts.compare(result(), result(remat="minimal", global_batch=64))
    assert found.different_settings == {
        "plan.global_batch": (32, 64),
        "plan.remat": ("full", "minimal"),
    }
    text = str(found)
    assert "settings    plan.global_batch: 32 | 64\n            plan.remat: full | minimal" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_program_has_no_keys_of_a_plan_to_differ_in() -> None:
    found = ts.compare(small_replay(), result())
    assert not [key for key in found.different_settings if key.startswith(("plan.", "model."))]
    assert found.steps[0].mfu is None
    assert "MFU" in str(found)


@pytest.mark.thorough
def test_files_are_written_twice_the_same(tmp_path: Path) -> None:
    found = ts.compare(result(), result(remat="minimal"), small_replay())
    for folder in ("a", "b"):
        write_comparison(found, tmp_path / folder)
    names = {"compare.txt", "compare.json", "compare.csv", "compare.png", "compare.svg"}
    assert {file.name for file in (tmp_path / "a").iterdir()} == names
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    facts = json.loads((tmp_path / "a" / "compare.json").read_text("utf-8"))
    assert facts["b_s"] - facts["a_s"] == pytest.approx(facts["difference_s"])
    assert sum(facts["parts_s"].values()) == pytest.approx(facts["difference_s"])
    assert [*facts["steps"]] == ["A", "B", "C"]
    assert [(each["a"], each["b"]) for each in facts["against_first"]] == [("A", "B"), ("A", "C")]
    for each in facts["against_first"]:
        assert (
            sum(each["parts_ps"].values()) == each["difference_ps"] == each["b_ps"] - each["a_ps"]
        )
    with (tmp_path / "a" / "compare.csv").open(newline="") as file:
        rows = {row["quantity"]: row for row in csv.DictReader(file)}
    assert float(rows["step_time_s"]["B - A"]) == pytest.approx(facts["difference_s"])
    assert float(rows["matmul"]["C"]) == pytest.approx(facts["steps"]["C"]["breakdown_s"]["matmul"])
    assert rows["mfu"]["C"] == ""
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="file is a file; give a folder"):
        write_comparison(found, tmp_path / "file")


def test_many_steps_are_two_tables() -> None:
    found = ts.compare(*[replace(ONE, title=f"number {n}") for n in range(7)])
    text = str(found)
    assert max(map(len, text.splitlines())) <= 100
    assert text.count("  matmul") == 2
    assert len(found.differences) == 6


BAD_FILES = [
    ("", "not JSON"),
    ("[1]", "not a result; give a result.json that"),
    ("{}", "not a result of a simulation, as it has no step_time_s; give a result.json"),
    ({"mfu": "half"}, "as mfu is 'half'"),
    ({"hfu": None}, "as hfu is None"),
    ({"step_time_s": -1.0}, "as step_time_s is -1.0"),
    ({"breakdown_s": [1]}, r"as breakdown_s is \[1\]"),
    ({"breakdown_s": {"matmul": 1.0}}, "breakdown_s sums to 1.0, but step_time_s is .*, so it was"),
    ({"phases_s": {"forward": True}}, "as phases_s is"),
    ({"slice": "v4"}, "as slice is 'v4'"),
    ({"step_time_s": 0.0}, "as step_time_s is 0.0"),
    ({"step_time_s": 1e299}, "as step_time_s is 1e"),
    ({"step_time_s": float("nan")}, "not JSON .NaN is no number of JSON"),
    ({"model": [[[[[[[[[[[[[1]]]]]]]]]]]]]}, "not JSON .more than 12 tables or lists within each"),
    *(
        ({key: ...}, f"as it has no {key}; give")
        for key in ("mfu", "hfu", "tokens_per_s", "hbm_peak_bytes", "breakdown_s", "placement")
    ),
]


@pytest.mark.parametrize(("content", "sentence"), BAD_FILES)
def test_a_file_that_is_no_result_is_refused(
    content: str | dict[str, object], sentence: str, tmp_path: Path
) -> None:
    if isinstance(content, dict):
        facts = document(small_replay()) | content
        content = json.dumps({key: value for key, value in facts.items() if value is not ...})
    (tmp_path / "result.json").write_text(content, "utf-8")
    with pytest.raises(FileError, match=sentence) as caught:
        read_step(tmp_path)
    assert str(tmp_path / "result.json") in str(caught.value)
    assert "\n" not in str(caught.value)


NO_STEPS = [
    ((ONE,), "compare is given 1 step; give 2 to 26"),
    ((), "compare is given 0 steps"),
    ((ONE,) * 27, "compare is given 27 steps; give 2 to 26"),
    ((ONE, 3), "compare is given 3, which is no step; give a result"),
    ((ONE, "run.toml"), "run.toml is a run file; simulate it first"),
]


@pytest.mark.parametrize(("steps", "sentence"), NO_STEPS)
def test_what_is_no_step_is_refused(steps: tuple[ComparedStep, ...], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        ts.compare(*steps)


def test_a_comparison_is_frozen() -> None:
    found = ts.compare(ONE, OTHER)
    with pytest.raises(AttributeError):
        found.steps = ()  # type: ignore[misc]
    assert isinstance(found, Comparison)
    assert isinstance(found.differences[0], StepDifference)
    assert hash(found.names)


def test_a_result_file_is_the_step_of_its_result(tmp_path: Path) -> None:
    for at, given in enumerate((result(), small_replay())):
        file = tmp_path / f"{at}.json"
        file.write_text(json.dumps(document(given)), "utf-8")
        assert replace(read_step(file), source="") == step_of(given)


def test_a_file_after_rounding_of_long_steps_still_sums(tmp_path: Path) -> None:
    """Floats hold whole picoseconds up to a quarter of an hour: a step of five hours is rounded."""
    written = document(small_replay())
    parts = {"matmul": 12345.678901234567, "exposed fsdp": 5432.1098765432109, "vector": 1e-12}
    written |= {"breakdown_s": parts, "phases_s": {"forward": sum(parts.values())}}
    written["step_time_s"] = sum(parts.values())
    (tmp_path / "long.json").write_text(json.dumps(written), "utf-8")
    step = read_step(tmp_path / "long.json")
    assert sum(step.breakdown_ps.values()) == step.step_ps == sum(step.phases_ps.values())


def test_said_is_what_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for at, given in enumerate((result(), small_replay())):
        (tmp_path / f"{at}.json").write_text(json.dumps(document(given)), "utf-8")
    paths = [str(tmp_path / f"{at}.json") for at in (0, 1)]
    code, out, _ = said(["compare", *paths, "--out", str(tmp_path / "out")], capsys)
    assert code == 0
    assert (
        out == f"{(tmp_path / 'out/compare.txt').read_text('utf-8')}\nreport      {tmp_path}/out\n"
    )


def test_what_others_wrote_reaches_no_terminal(tmp_path: Path) -> None:
    facts = document(small_replay())
    facts["replay"]["program"] = "a\x1b[2Jb" + "x" * 10_000
    facts["fit"] = "\x1b]0;title\x07\n\n"
    facts["slice"]["topology"] = "\u202e4x4"
    facts["breakdown_s"] = {"\x1b[31mred": facts["step_time_s"]}
    (tmp_path / "result.json").write_text(json.dumps(facts), "utf-8")
    text = str(ts.compare(ONE, tmp_path))
    assert visible_lines(text) == text
    assert "a\ufffd[2Jb" in text
    assert max(map(len, text.splitlines())) < 300
