"""The report of a server: figures that show its numbers, its trace, its page and its files."""

import gzip
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_servers import SECOND, by_hand, small_result, small_traffic

from tpusim.base import PlanError, TpusimError
from tpusim.report import (
    load_data,
    plot_load,
    plot_requests,
    plot_server,
    register_serving_figure,
    requests_data,
    server_data,
    serving_trace,
    write_serving,
)
from tpusim.report.figures.render import png_bytes
from tpusim.serving import NUMBERS, TIMES, ServingResult

STEADY = small_result()
TWO = small_result(replicas=2)


def test_the_means_of_the_curves_are_the_metrics() -> None:
    for result in (STEADY, TWO):
        curves = server_data(result, parts=50)
        assert curves.edges_s[-1] == pytest.approx(result.metrics.duration_s)
        waited = float(result.served.scheduled_ps.sum() - result.served.arrival_ps.sum()) / SECOND
        assert curves.queue.mean() * curves.edges_s[-1] == pytest.approx(waited)
        assert curves.cache.mean() == pytest.approx(result.metrics.numbers["cache_use"])
        spans = result.served.spans
        decoding = float(spans.decodes @ (spans.end_ps - spans.start_ps)) / SECOND
        assert curves.batch.mean() * curves.edges_s[-1] == pytest.approx(decoding)


def test_the_timeline_has_the_request_that_waits_longest() -> None:
    data = requests_data(STEADY, count=20)
    assert data.moments_s.shape == (20, 4)
    assert (np.diff(data.moments_s, axis=1) >= 0).all()
    ttft = data.moments_s[:, 2] - data.moments_s[:, 0]
    assert ttft.max() == pytest.approx(STEADY.metrics.times["ttft"].maximum)
    assert requests_data(STEADY, first=0, count=3).moments_s[0, 0] == 0


def test_the_load_figure_has_the_loads_in_order() -> None:
    runs = [small_result(small_traffic(rate=rate, requests=200)) for rate in (12.0, 2.0, 4.0)]
    data = load_data(runs)
    assert [(each.load, each.saturated) for each in data.points] == [
        (2.0, False), (4.0, False), (12.0, True),
    ]  # fmt: skip
    assert data.points[0].ttft == runs[1].metrics.times["ttft"][1:5:3]
    assert data.unit == "requests/s that arrive"
    ax = plot_load(data)
    assert len(ax.lines[0].get_xdata()) == 2


def test_the_load_figure_refuses_runs_that_differ_in_kind() -> None:
    users = small_result(small_traffic(users=4, requests=20))
    assert load_data([users]).unit == "concurrent users"
    with pytest.raises(PlanError, match="open and of closed loops"):
        load_data([STEADY, users])
    with pytest.raises(PlanError, match="is given no run"):
        load_data([])


def drawn(result: ServingResult) -> list[bytes]:
    return [
        png_bytes(lambda: plot_server(server_data(result)), "title"),
        png_bytes(lambda: plot_requests(requests_data(result)), "title"),
        png_bytes(lambda: plot_load(load_data([result])), "title"),
    ]


def test_figures_of_one_request_are_drawn() -> None:
    one = small_result(small_traffic(requests=1))
    assert all(each.startswith(b"\x89PNG") for each in drawn(one))


def test_a_figure_has_a_name_of_its_own() -> None:
    with pytest.raises(TpusimError, match="there is a figure 'server' already"):
        register_serving_figure("server", server_data, plot_server)


def test_the_trace_has_every_request_and_every_step() -> None:
    events = serving_trace(TWO)["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert sum(event["args"]["steps"] for event in slices) == int(TWO.served.spans.steps.sum())
    assert {event["pid"] for event in slices} == {0, 1}
    requests = Counter(event["name"] for event in events if event["ph"] == "b")
    assert requests["waiting"] == requests["prefill"] == requests["decode"] == 120
    open_now: dict[int, list[str]] = {}
    for event in events:
        if event["ph"] == "b":
            open_now.setdefault(event["id"], []).append(event["name"])
        elif event["ph"] == "e":
            assert open_now[event["id"]].pop() == event["name"]
    assert not any(open_now.values())


def test_steps_of_a_replica_do_not_overlap() -> None:
    ends: dict[int, float] = {}
    for event in serving_trace(TWO)["traceEvents"]:
        if event["ph"] == "X":
            assert event["ts"] >= ends.get(event["pid"], 0.0)
            ends[event["pid"]] = event["ts"] + event["dur"]


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_the_files_of_a_report_are_the_same_twice(tmp_path: Path) -> None:
    write_serving(STEADY, tmp_path / "one")
    write_serving(small_result(), tmp_path / "two")
    one = files_of(tmp_path / "one")
    assert one == files_of(tmp_path / "two")
    assert set(one) == {
        "serving.txt", "serving.json", "requests.csv", "trace.json.gz", "report.html",
        "server.png", "server.svg", "requests.png", "requests.svg",
    }  # fmt: skip
    assert one["serving.txt"].decode() == f"{STEADY}\n"
    rows = one["requests.csv"].decode().splitlines()
    assert len(rows) == 121
    first: dict[str, Any] = dict(zip(rows[0].split(","), map(int, rows[1].split(",")), strict=True))
    assert first["prompt"] == STEADY.served.prompt[0]
    json.loads(gzip.decompress(one["trace.json.gz"]))


def test_the_page_answers_and_defines(tmp_path: Path) -> None:
    saturated = small_result(small_traffic(rate=20.0, requests=300))
    for name, result in (("steady", STEADY), ("saturated", saturated)):
        write_serving(result, tmp_path / name)
        page = (tmp_path / name / "report.html").read_text("utf-8")
        assert "<script" not in page
        assert ("It is saturated." in page) == result.saturated
        text = re.sub(r"<[^>]*>", "", page)
        for metric in (*TIMES.values(), *NUMBERS.values()):
            assert metric.title in text
        assert f"the cache holds {result.cache_tokens:,} tokens" in text


@pytest.mark.thorough
def test_a_name_cannot_write_into_the_page(tmp_path: Path) -> None:
    evil = STEADY.model.replace(name="<b>x</b>")
    write_serving(replace(STEADY, model=evil), tmp_path)
    assert "<b>x</b>" not in (tmp_path / "report.html").read_text("utf-8")


def test_refused_requests_are_in_no_figure() -> None:
    refused = by_hand(
        arrival_ps=np.array([0, 5]), scheduled_ps=np.array([-1, 6]), first_ps=np.array([-1, 7]),
        last_ps=np.array([-1, 9]), output=np.array([0, 2]),
    )  # fmt: skip
    result = replace(STEADY, served=refused)
    assert requests_data(result).moments_s.tolist() == [[0.0, 1e-12, 2e-12, 4e-12]]
    phases = [e for e in serving_trace(result)["traceEvents"] if e.get("name") == "prefill"]
    assert len(phases) == 2


def test_a_server_that_answers_nothing_has_a_report(tmp_path: Path) -> None:
    none = by_hand(arrival_ps=np.array([0, 5]), output=np.array([0, 0]))
    nothing = ServingResult.of(
        none, STEADY.traffic, STEADY.policy, model=STEADY.model, plan=STEADY.plan,
        pod=STEADY.pod, prefill=None, decode=None,
    )  # fmt: skip
    write_serving(nothing, tmp_path)
    assert "2 refused" in (tmp_path / "serving.txt").read_text("utf-8")
