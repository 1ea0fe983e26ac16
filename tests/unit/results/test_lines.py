"""Where the step goes by line of code: all of it, each part once, under the line that made it."""

from dataclasses import replace

import pytest
from replays import called_replay, small_replay

import tpusim as ts
from tpusim.base import Phase
from tpusim.results import BUBBLE_LABEL, explain_lines
from tpusim.results.lines import MOST_BENEATH, OPENED_SHARE, LineTable, SourceLine

MODEL = ts.models.Transformer(layers=4, embed=512, mlp=2048, heads=4, vocab=1000)


def test_lines_have_the_step_between_them() -> None:
    result = small_replay()
    lines = explain_lines(result)
    assert lines.sourced
    assert sum(row.seconds for row in lines.rows) == pytest.approx(result.step_time_s, rel=1e-12)
    for row in lines.rows:
        assert sum(row.does_s.values()) == pytest.approx(row.seconds, rel=1e-12)
        assert sum(row.phases_s.values()) == pytest.approx(row.seconds, rel=1e-12)
    times = [row.seconds for row in lines.rows]
    assert times == sorted(times, reverse=True)


def test_a_line_has_what_it_runs_and_what_is_waited_for_it() -> None:
    """Both lines have six products a phase; the gather of line 13 runs beside that of line 12."""
    result = small_replay()
    rows = {row.place: row for row in explain_lines(result).rows}
    assert set(rows) == {"model.py:12", "model.py:13", "optimizer.py:7", "strange"}
    first, second = rows["model.py:12"], rows["model.py:13"]
    assert first.does_s["matmul"] == second.does_s["matmul"]
    assert first.does_s["matmul"] + second.does_s["matmul"] == pytest.approx(
        result.breakdown_s["matmul"]
    )
    exposed = [row.does_s["exposed fsdp"] for row in (first, second)]
    assert sum(exposed) == pytest.approx(result.breakdown_s["exposed fsdp"])
    assert 0 < exposed[1] < exposed[0]
    assert list(rows["optimizer.py:7"].phases_s) == [Phase.OPTIMIZER]
    assert second.phases_s[Phase.FORWARD] == pytest.approx(second.seconds / 3)


def test_without_lines_scopes_stand_for_them() -> None:
    pod = ts.Slice("v5e", "4x4")
    result = ts.simulate(MODEL, ts.Plan(mesh={"fsdp": 16}, seq_len=64, global_batch=16), pod)
    lines = explain_lines(result)
    assert not lines.sourced
    assert sum(row.seconds for row in lines.rows) == pytest.approx(result.step_time_s, rel=1e-12)
    assert {"layer/wq", "logits"} <= {row.place for row in lines.rows}
    assert str(lines).splitlines()[0].endswith("together")
    assert "scopes" in str(lines).splitlines()[0]


@pytest.mark.parametrize("schedule", ["1f1b", "circular"])
def test_of_stages_it_is_the_mean(schedule: str) -> None:
    pod = ts.Slice("v5p", "2x2x4")
    plan = ts.Plan(
        mesh={"stage": 4, "fsdp": 4}, seq_len=64, global_batch=64, microbatches=8,
        schedule=schedule,
    )  # fmt: skip
    result = ts.simulate(MODEL, plan, pod)
    rows = explain_lines(result).rows
    assert sum(row.seconds for row in rows) == pytest.approx(result.step_time_s, rel=1e-9)
    bubble = sum(row.seconds for row in rows if row.place == BUBBLE_LABEL)
    assert bubble == pytest.approx(result.breakdown_s.get(BUBBLE_LABEL, 0.0))


def test_the_table_fits_its_width() -> None:
    text = str(explain_lines(small_replay()))
    assert max(map(len, text.splitlines())) <= 100
    assert text.startswith("lines       all 4 lines of your code\n")
    assert "model.py:12" in text.splitlines()[2]


def test_one_line_is_not_called_all_lines() -> None:
    table = explain_lines(small_replay())
    alone = replace(table, rows=table.rows[:1])
    assert str(alone).startswith("lines       the one line of your code\n")
    assert str(replace(alone, sourced=False)).startswith("lines       the one scope\n")


def test_beneath_a_line_stand_the_lines_of_the_package_that_it_calls() -> None:
    """Six equal products, three of which are of one line of the package, and one of none."""
    calling, update = explain_lines(called_replay()).rows
    assert (calling.place, update.place) == ("train.py:66", "train.py:80")
    assert [(each.place, each.function) for each in calling.library] == [
        ("net/mlp.py:9", "MLP.__call__"), ("net/attention.py:30", "attend"),
        ("net/attention.py:31", ""), ("", ""),
    ]  # fmt: skip
    shares = [each.seconds / calling.seconds for each in calling.library]
    assert shares == pytest.approx([3 / 6, 1 / 6, 1 / 6, 1 / 6])
    assert update.library == ()


def test_the_table_has_what_is_beneath_a_line() -> None:
    text = [line.split() for line in str(explain_lines(called_replay())).splitlines()]
    assert [words[0] for words in text[2:]] == [
        "train.py:66", "net/mlp.py:9", "net/attention.py:30", "net/attention.py:31", "(itself)",
        "train.py:80",
    ]  # fmt: skip
    assert [float(words[3].rstrip("%")) for words in text[3:7]] == pytest.approx(
        [300 / 7, 100 / 7, 100 / 7, 100 / 7], abs=0.06
    )
    assert text[3][-1] == "MLP.__call__"


def line(place: str, seconds: float, *library: SourceLine) -> SourceLine:
    times = {"does_s": {"matmul": seconds}, "phases_s": {Phase.FORWARD: seconds}}
    return SourceLine(place=place, scope="", seconds=seconds, **times, library=library)


def shown(lines: LineTable) -> list[str]:
    """Place and time of each row."""
    return [text.partition(" s ")[0].strip() for text in str(lines).splitlines()[2:]]


def test_a_place_that_is_a_scope_is_said_once() -> None:
    row = replace(line("weights['in']", 1.0), scope="weights['in']")
    (text,) = str(LineTable((row,), 1.0, True)).splitlines()[2:]
    assert text.count("weights") == 1
    (text,) = str(LineTable((replace(row, place="train.py:1"),), 1.0, True)).splitlines()[2:]
    assert text.endswith("; weights['in']")


def test_what_is_left_of_a_long_line_stands_together() -> None:
    parts = [line(f"net/a.py:{at}", 1.0) for at in range(MOST_BENEATH + 3)]
    calling = line("train.py:1", float(len(parts)), *parts)
    table = shown(LineTable((calling,), calling.seconds, True))
    assert len(table) == 1 + MOST_BENEATH + 1
    assert table[-1].split() == ["(3", "others)", "3"]
    assert sum(float(row.split()[-1]) for row in table[1:]) == pytest.approx(len(parts))
    single = [line("net/a.py:1", 99.5), line("net/a.py:2", 0.5)]
    assert "net/a.py:2" in shown(LineTable((line("train.py:1", 100.0, *single),), 100.0, True))[-1]


def test_only_lines_that_take_much_of_the_step_are_opened() -> None:
    small = line("train.py:2", 0.9 * OPENED_SHARE, line("net/a.py:1", 0.9 * OPENED_SHARE))
    large = line("train.py:1", 1 - 0.9 * OPENED_SHARE, line("net/a.py:2", 1 - 0.9 * OPENED_SHARE))
    table = [row.split()[0] for row in shown(LineTable((large, small), 1.0, True))]
    assert table == ["train.py:1", "net/a.py:2", "train.py:2"]
