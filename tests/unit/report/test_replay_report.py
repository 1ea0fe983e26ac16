"""The report of a compiled program: the files of a plan's, with the names of the user's code."""

import csv
import json
from io import StringIO

import pytest
from replays import called_replay, small_replay
from reports import lines_csv, render_files

import tpusim as ts
from tpusim.report import document, perfect_compiler, plot_memory, trace

FIGURES = ("breakdown", "timeline", "memory", "utilisation", "torus", "axes", "roofline")


@pytest.mark.thorough
def test_all_files_are_written() -> None:
    result = small_replay()
    files = render_files(result, None)
    assert set(files) == {
        "summary.txt", "result.json", "operations.csv", "transfers.csv", "lines.csv",
        "program.txt", "trace.json.gz", "report.html",
        *(f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")),
    }  # fmt: skip
    assert b"model.py:12" in files["timeline.svg"]
    assert b"model.py:12 12/dot_general" in files["roofline.svg"]


def test_a_compiler_that_ran_has_no_perfect_twin() -> None:
    assert perfect_compiler(small_replay()) is None


def test_the_document_has_the_keys_of_a_plans_and_more() -> None:
    pod = ts.Slice("v5e", "1x1")
    model = ts.models.Transformer(layers=1, embed=128, mlp=128, heads=1, vocab=128)
    plan = ts.Plan(mesh={"fsdp": 1}, seq_len=16, global_batch=1)
    planned = list(document(ts.simulate(model, plan, pod)))
    made = document(small_replay())
    assert list(made) == [*planned, "replay", "lines"]
    assert [key for key in made if made[key] is None] == [
        "mfu", "tokens_per_s", "reason", "fit_odds", "hbm_peak_range_bytes", "hbm_unlike",
        "to_fit", "step_time_range_s", "mfu_range", "measured_mfu", "like_measured",
        "ideal_step_time_s", "maxtext_step_time_s", "tflops_per_device", "model", "plan",
        "pipeline",
    ]  # fmt: skip
    assert json.loads(json.dumps(made)) == made
    assert sum(row["seconds"] for row in made["lines"]) == pytest.approx(made["step_time_s"])


def test_lines_csv_sums_to_the_step() -> None:
    result = small_replay()
    rows = list(csv.DictReader(StringIO(lines_csv(result))))
    assert rows[0]["line"] == "model.py:12"
    assert sum(float(row["total_s"]) for row in rows) == pytest.approx(result.step_time_s)
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1, abs=1e-5)
    for row in rows:
        phases = ("forward_s", "recompute_s", "backward_s", "optimizer_s")
        assert sum(float(row[phase]) for phase in phases) == pytest.approx(float(row["total_s"]))


def test_what_a_package_runs_is_in_the_files_with_the_line_that_calls_it() -> None:
    result = called_replay()
    rows = list(csv.DictReader(StringIO(lines_csv(result))))
    assert [(row["line"], row["library_line"], row["function"]) for row in rows] == [
        ("train.py:66", "net/mlp.py:9", "MLP.__call__"),
        ("train.py:66", "net/attention.py:30", "attend"),
        ("train.py:66", "net/attention.py:31", ""),
        ("train.py:66", "", ""),
        ("train.py:80", "", ""),
    ]
    assert sum(float(row["total_s"]) for row in rows) == pytest.approx(result.step_time_s)
    calling, update = document(result)["lines"]
    assert [each["line"] for each in calling["library"]] == [
        row["library_line"] for row in rows[:4]
    ]
    assert sum(each["seconds"] for each in calling["library"]) == pytest.approx(calling["seconds"])
    assert update["library"] == []
    events = trace(result)["traceEvents"]
    found = {event["name"]: event["args"] for event in events if event["ph"] == "X"}
    assert found["fusion.0"]["library"] == "net/mlp.py:9 in MLP.__call__"


def test_slices_of_the_trace_have_line_and_scope() -> None:
    events = trace(small_replay())["traceEvents"]
    found = {event["name"]: event["args"] for event in events if event["ph"] == "X"}
    assert found["fusion.1"]["source"] == "model.py:12"
    assert found["fusion.1"]["scope"] == "mlp/12/dot_general"
    assert found["copy-start.1"]["source"] == "model.py:13"
    assert "mfu" not in found["train_step"]


@pytest.mark.usefixtures("undrawn")
def test_a_program_that_is_too_large_says_so_first() -> None:
    held = {"heap": 2.0**36}
    files = render_files(small_replay(held=held), None)
    assert files["summary.txt"].startswith(b"DOES NOT FIT")
    assert json.loads(files["result.json"])["fits"] is False


def test_a_limit_far_above_leaves_the_level_room() -> None:
    """528 MiB of 15.8 GiB: the axes end above the level, and the limit is a text."""
    ax = plot_memory(small_replay())
    assert ax.get_ylabel() == "HBM of one device [MiB]"
    assert 528 < ax.get_ylim()[1] < 700
    assert any("usable 15.8 GiB, far above" in text.get_text() for text in ax.texts)
    near = plot_memory(small_replay(held={"heap": 4.0 * 2**30}))
    assert near.get_ylabel() == "HBM of one device [GiB]"
    assert near.get_ylim()[1] > 15.8
