"""The report of a pipeline: every stage is told of, its slots as they ran, and sums are right."""

import csv
import json
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from functools import cache
from io import StringIO
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from extent import sample
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.text import Text
from pipelines import peak_alive
from reports import (
    CORE_COMMUNICATES,
    CORE_COMPUTES,
    CORE_WAITS,
    link_volumes,
    operations_csv,
    transfers_csv,
)
from test_figures import axes_of, shown

import tpusim as ts
from tpusim.pipeline import schedule_of
from tpusim.program import PassKind
from tpusim.report import (
    axes_data,
    document,
    memory_data,
    pipeline_data,
    plot_axes,
    plot_breakdown,
    plot_memory,
    plot_pipeline,
    plot_roofline,
    plot_timeline,
    plot_torus,
    plot_utilisation,
    roofline_data,
    timeline_data,
    torus_data,
    trace,
    utilisation_data,
    write_report,
)
from tpusim.report.figures.pipeline import DRAWN_WIDTH, PIPELINE_POINTS
from tpusim.results import PICO, Result, StageUse

PLOTS = (
    *(plot_axes, plot_breakdown, plot_memory, plot_pipeline, plot_roofline, plot_timeline),
    *(plot_torus, plot_utilisation),
)
SCHEDULES = (
    *(("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("circular", 1)),
    ("circular", 2),
)
BY_CALLS = tuple(each for each in SCHEDULES if each[0] != "circular")
STAGES, MICROBATCHES = 4, 8

schedules = pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES)
by_calls = pytest.mark.parametrize(("schedule", "chunks"), BY_CALLS)


@cache
def result(schedule: str = "1f1b", chunks: int = 1, slices: int = 1) -> Result:
    model = ts.models.Transformer(
        name="m", layers=16, embed=2048, mlp=8192, heads=16, kv_heads=8, vocab=32000
    )
    inner = {"stage": STAGES // slices} if slices < STAGES else {}
    stages = {"dcn_stage": slices, **inner} if slices > 1 else {"stage": STAGES}
    plan = ts.Plan(
        mesh={**stages, "fsdp": 4, "tensor": 4 * slices}, seq_len=2048, global_batch=64,
        microbatches=MICROBATCHES, schedule=schedule, virtual_stages=chunks,
    )  # fmt: skip
    return ts.simulate(model, plan, ts.Slice("v5p", "4x4x4", slices))


@cache
def plain() -> Result:
    model = ts.models.Transformer(name="m", layers=2, embed=1024, mlp=4096, heads=8, vocab=1000)
    plan = ts.Plan(mesh={"fsdp": 64}, seq_len=256, global_batch=64)
    return ts.simulate(model, plan, ts.Slice("v5p", "4x4x4"))


def spans(use: StageUse) -> list[tuple[int, int]]:
    ran = [(each.start_ps, each.end_ps) for each in use.slots]
    return sorted([*ran, *use.send_waits, *use.other, *use.unread])


@schedules
def test_what_a_stage_does_and_its_bubble_are_the_step(schedule: str, chunks: int) -> None:
    data = pipeline_data(result(schedule, chunks))
    assert [use.stage for use in data.stages] == list(range(STAGES))
    for use in data.stages:
        each = spans(use)
        assert all(end <= start for (_, end), (start, _) in pairwise(each))
        waits = 0 if use.unread else use.bubble_ps
        assert sum(end - start for start, end in each) + waits == data.step_ps


@schedules
def test_each_stage_has_every_microbatch_once_for_each_pass(schedule: str, chunks: int) -> None:
    kinds = PassKind if schedule.startswith("zb") else (PassKind.FORWARD, PassKind.BACKWARD)
    every = {(k, m, c) for k in kinds for m in range(MICROBATCHES) for c in range(chunks)}
    for use in pipeline_data(result(schedule, chunks)).stages:
        ran = [(e.slot.kind, e.slot.microbatch, e.slot.chunk) for e in use.slots]
        assert len(ran) == len(every)
        assert set(ran) == every
        assert sum(use.layers) == 16 // STAGES


@by_calls
def test_a_slot_begins_when_what_it_needs_is_made(schedule: str, chunks: int) -> None:
    one = result(schedule, chunks)
    order, stages = schedule_of(one.plan), pipeline_data(one).stages
    ran = {(use.stage, each.slot): each for use in stages for each in use.slots}
    for (stage, slot), each in ran.items():
        for needed in order.operands(stage, slot):
            assert ran[needed].end_ps <= each.start_ps
    for use, slots in zip(stages, order.slots, strict=True):
        assert tuple(each.slot for each in use.slots) == slots


@pytest.mark.parametrize("chunks", [1, 2])
def test_microbatches_go_round_a_circular_pipeline_a_stage_a_trip(chunks: int) -> None:
    one = result("circular", chunks)
    stages = pipeline_data(one).stages
    ran = {(use.stage, each.slot): each for use in stages for each in use.slots}
    forward = [(at, slot) for at, slot in ran if slot.kind is PassKind.FORWARD and at]
    assert all(ran[at, slot].start_ps > ran[at - 1, slot].end_ps for at, slot in forward)
    for use in stages:
        unread = sum(end - start for start, end in use.unread)
        assert unread == use.bubble_ps > 0
        assert len(use.unread) == 2 * (STAGES - 1)


@by_calls
def test_the_bubble_is_that_of_the_result(schedule: str, chunks: int) -> None:
    one = result(schedule, chunks)
    assert pipeline_data(one).bubble == pytest.approx(one.bubble, abs=1e-9)
    sent = sum(use.send_wait_ps for use in pipeline_data(one).stages) / STAGES * PICO
    assert sent == pytest.approx(one.breakdown_s.get("exposed stage", 0.0), abs=1e-9)


@schedules
def test_the_bars_of_the_figure_are_the_slots(schedule: str, chunks: int) -> None:
    data, ax = pipeline_data(result(schedule, chunks)), plot_pipeline(result(schedule, chunks))
    paths = [patch.get_path() for patch in ax.findobj(PathPatch)]
    drawn = sum(
        float(np.ptp(path.vertices[:, 0].reshape(-1, 5), axis=1).sum()) for path in paths
    )  # fmt: skip
    lengths = [end - start for use in data.stages for start, end in spans(use)]
    least = DRAWN_WIDTH / PIPELINE_POINTS * data.step_ps
    whole = sum(length for length in lengths if length >= least)
    assert whole == pytest.approx(sum(lengths), rel=1e-3)
    assert drawn == pytest.approx(whole * PICO * 1e3, rel=1e-6)
    title = ax.get_title(loc="left")
    assert title.startswith(f"m on v5p:4x4x4: {schedule}, ")
    assert f"{data.bubble:.1%}" in title


def test_many_slots_are_few_artists() -> None:
    one = result()
    many = plot_pipeline(result("zb-h1"))
    assert len(many.get_children()) < 60
    assert len(many.findobj(PathPatch)) <= 5
    assert len(plot_pipeline(one).findobj(PathPatch)) <= 4


def name(value: object) -> str | None:
    return getattr(value, "__name__", None)


drawn = [(plot, *schedule) for plot in PLOTS for schedule in SCHEDULES]


@pytest.mark.parametrize(("plot", "schedule", "chunks"), sample(drawn, every=10), ids=name)
def test_no_text_is_cut_off_and_none_lies_on_another(plot: Any, schedule: str, chunks: int) -> None:
    check_texts(axes_of(plot(result(schedule, chunks))))


@pytest.mark.parametrize(("plot", "slices"), sample(product(PLOTS, (2, 4)), every=3), ids=name)
def test_the_same_holds_over_slices(plot: Any, slices: int) -> None:
    check_texts(axes_of(plot(result(slices=slices))))


def check_texts(axes: Sequence[Axes]) -> None:
    figure = axes[0].get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # type: ignore[union-attr]
    whole = figure.bbox
    for ax in axes:
        boxes = {text: Text.get_window_extent(text) for text in shown(ax)}
        leaders = [(text, arrow) for text in boxes if (arrow := getattr(text, "arrow_patch", None))]
        for text, box in boxes.items():
            assert whole.x0 - 1 <= box.x0 < box.x1 <= whole.x1 + 1, text.get_text()
            assert whole.y0 - 1 <= box.y0 < box.y1 <= whole.y1 + 1, text.get_text()
        for (one, a), (other, b) in combinations(boxes.items(), 2):
            if "\n" not in one.get_text() + other.get_text():
                assert not a.padded(-1).overlaps(b.padded(-1)), (one.get_text(), other.get_text())
        for text, arrow in leaders:
            line = arrow.get_transform().transform_path(arrow.get_path())
            crossed = [o.get_text() for o, box in boxes.items() if line.intersects_bbox(box, False)]
            assert set(crossed) <= {text.get_text()}, (text.get_text(), crossed)


def test_stages_over_slices_are_named_with_their_slice() -> None:
    ax = plot_pipeline(result(slices=2))
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == [f"slice {at // 2}, stage {at}" for at in range(STAGES)]


@pytest.mark.thorough
@pytest.mark.usefixtures("undrawn")
def test_only_pipelines_have_the_figure(tmp_path: Path) -> None:
    write_report(result(), tmp_path / "pipeline")
    write_report(plain(), tmp_path / "plain")
    names = [{file.name for file in (tmp_path / of).iterdir()} for of in ("pipeline", "plain")]
    assert names[0] - names[1] == {"pipeline.png", "pipeline.svg"}
    assert plot_pipeline(plain()).get_title(loc="left") == "m on v5p:4x4x4: no pipeline"
    assert pipeline_data(plain()).stages == ()
    assert pipeline_data(plain()).bubble == 0.0


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


@by_calls
def test_the_operations_of_each_stage_sum_to_the_step(schedule: str, chunks: int) -> None:
    one = result(schedule, chunks)
    totals: dict[str, Decimal] = {}
    for row in rows(operations_csv(one)):
        totals[row["stage"]] = totals.get(row["stage"], Decimal()) + Decimal(row["total_s"])
    step = Decimal(one.timeline.total_ps).scaleb(-12)
    assert totals == {str(stage): step for stage in range(STAGES)}


def test_a_table_of_one_program_has_no_stages() -> None:
    for one in (plain(), result("circular")):
        assert "stage" not in rows(operations_csv(one))[0]
        assert "stage" not in rows(transfers_csv(one))[0]


@by_calls
def test_transfers_have_every_message(schedule: str, chunks: int) -> None:
    sent: Counter[str] = Counter()
    for row in rows(transfers_csv(result(schedule, chunks))):
        if row["kind"] == "send" and row["dtype"] == "bf16":
            sent[row["stage"]] += int(row["count"])
            assert float(row["bytes"]) == 8 * 2048 * 2048 * 2 / 4
    hops = 2 * MICROBATCHES * (STAGES * chunks - 1)
    assert sum(sent.values()) == hops


def test_the_document_tells_of_each_stage() -> None:
    one = result("zb-h1")
    told = json.loads(json.dumps(document(one)))["pipeline"]
    assert (told["schedule"], told["stages"], told["microbatches"]) == ("zb-h1", 4, 8)
    assert len(told["each"]) == STAGES
    assert sum(each["layers"] for each in told["each"]) == 16
    assert told["each"][0]["besides"] == "embedding"
    assert all(each["weights_s"] > 0 for each in told["each"])
    peaks = [each["hbm_peak_bytes"] for each in told["each"]]
    assert max(peaks) == peaks[told["fullest_stage"]] == one.hbm_peak_bytes
    mean = sum(each["bubble_s"] for each in told["each"]) / STAGES
    assert mean / one.step_time_s == pytest.approx(told["bubble"])
    assert document(plain())["pipeline"] is None


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_memory_says_how_many_microbatches_are_in_flight(schedule: str) -> None:
    one = result(schedule)
    use = memory_data(one)
    assert use.in_flight == peak_alive(schedule_of(one.plan))[one.lane]
    assert max(level for _, level in use.levels) == use.peak_bytes == one.hbm_peak_bytes
    assert f"stage {one.lane}" in plot_memory(one).get_title(loc="left")
    assert f"{use.in_flight} microbatches" in plot_memory(one).get_xlabel()
    assert memory_data(plain()).in_flight == 0


@schedules
def test_the_rows_of_the_core_are_the_breakdown(schedule: str, chunks: int) -> None:
    one = result(schedule, chunks)
    busy = {row.resource: row for row in utilisation_data(one)}
    core = [
        busy[name].total for name in (CORE_COMPUTES, CORE_COMMUNICATES, CORE_WAITS) if name in busy
    ]
    assert sum(core) == pytest.approx(1)
    if schedule != "circular":
        assert busy[CORE_WAITS].total == pytest.approx(one.bubble)
    for link, share in one.link_use.items():
        if link in busy:
            assert busy[link].total == pytest.approx(share, rel=1e-9)


@by_calls
def test_links_between_stages_carry_what_they_send(schedule: str, chunks: int) -> None:
    one = result(schedule, chunks)
    (dim,) = one.placement.written["stage"]
    use, busy = torus_data(one), {row.resource: row.total for row in utilisation_data(one)}
    at = one.pod.topology.names.index(dim)
    for way in "+-":
        assert use.busiest[f"{dim}{way}"] == pytest.approx(busy[f"ici:{dim}{way}"], abs=1e-6)
        along = np.moveaxis(use.of(f"{dim}{way}"), at, 0).reshape(STAGES, -1)
        carried = [bool(share > 1e-6) for share in along[:, 0]]
        edge = STAGES - 1 if way == "+" else 0
        assert carried == [stage != edge or chunks > 1 for stage in range(STAGES)]
    matrix = axes_data(one)
    row = matrix.bytes[matrix.rows.index("stage")]
    assert {name for name, nbytes in zip(matrix.columns, row, strict=True) if nbytes} == {
        f"ici:{dim}+", f"ici:{dim}-",
    }  # fmt: skip


@schedules
def test_the_timeline_shows_a_layer_of_each_pass(schedule: str, chunks: int) -> None:
    one = result(schedule, chunks)
    windows = timeline_data(one)
    assert len(windows) == (3 if schedule.startswith("zb") else 2)
    for window in windows:
        assert window.title.startswith("one layer, ")
        assert sum(each.length_ps for each in window.core) == window.end_ps - window.start_ps
    if schedule != "circular":
        assert "forward pass of microbatch" in windows[0].title
        assert f"stage {one.lane}" in plot_timeline(one)[0].get_title(loc="left")


@schedules
def test_no_operation_is_above_its_roof_and_some_are_near(schedule: str, chunks: int) -> None:
    data = roofline_data(result(schedule, chunks))
    reached = [data.reached(point) for point in data.points]
    assert 0.5 < max(reached) <= 1


def events(one: Result, **given: Any) -> dict[str, list[dict[str, Any]]]:
    """The events of a trace, by their kind."""
    found: dict[str, list[dict[str, Any]]] = {}
    for event in trace(one, **given)["traceEvents"]:
        found.setdefault(event["ph"], []).append(event)
    return found


@schedules
def test_the_trace_has_the_slots_of_each_stage_and_the_ways_between(
    schedule: str, chunks: int
) -> None:
    one = result(schedule, chunks)
    every = events(one)
    threads = {
        (event["pid"], event["tid"])
        for event in every["M"]
        if event["name"] == "thread_name" and event["args"]["name"].startswith("Microbatches")
    }
    assert len(threads) == STAGES
    slots = [e for e in every["X"] if (e["pid"], e["tid"]) in threads]
    assert len(slots) == sum(len(use.slots) for use in pipeline_data(one).stages)
    assert {e["args"]["microbatch"] for e in slots} == set(range(MICROBATCHES))
    starts, ends = ({e["id"]: e for e in every[kind]} for kind in "sf")
    assert starts.keys() == ends.keys()
    assert len(starts) == len(every["s"]) == 2 * MICROBATCHES * (STAGES * chunks - 1)
    for number, end in ends.items():
        start = starts[number]
        assert isinstance(number, int)
        assert start["ts"] < end["ts"]
        given, taken = (around(event, slots) for event in (start, end))
        assert start["name"].startswith(f"{given} of stage ")
        assert (given[0], taken.partition(".")[0]) == (taken[0], given.partition(".")[0])


def around(event: dict[str, Any], slices: list[dict[str, Any]]) -> str:
    """The name of the only slice that an event stands in."""
    (name,) = (
        each["name"] for each in slices
        if (each["pid"], each["tid"]) == (event["pid"], event["tid"])
        and each["ts"] < event["ts"] < each["ts"] + each["dur"]
    )  # fmt: skip
    return str(name)


@pytest.mark.parametrize(
    ("schedule", "chunks", "expand"),
    sample([(*each, expand) for each in BY_CALLS for expand in ("ends", "all")], every=3),
)
def test_a_stage_is_a_process_of_the_trace(schedule: str, chunks: int, expand: Any) -> None:
    one = result(schedule, chunks)
    every = events(one, expand=expand)
    named = [e["args"]["name"] for e in every["M"] if e["name"] == "process_name"]
    assert named == [f"/device:TPU:{stage} stage {stage}" for stage in range(STAGES)]
    peaks = [use.hbm_peak_bytes for use in pipeline_data(one).stages]
    for stage in range(STAGES):
        levels = [e["args"]["bytes"] for e in every["C"] if (e["pid"], e["name"]) == (stage, "HBM")]
        assert max(levels) == peaks[stage]
        core = [e for e in every["X"] if (e["pid"], e["tid"]) == (stage, 1)]
        if expand == "all":
            length = sum(round(e["dur"] * 10**6) for e in core)
            assert length == one.timeline.total_ps


@cache
def uneven() -> Result:
    """Chunks of one stage that differ: layers with experts, and first ones without."""
    model = ts.models.Transformer(
        name="m", layers=10, embed=2048, mlp=8192, heads=16, vocab=32000, experts=8,
        experts_per_token=2, expert_mlp=2048, dense_layers=1,
    )  # fmt: skip
    plan = ts.Plan(
        mesh={"stage": 2, "fsdp": 8, "expert": 4}, seq_len=1024, global_batch=128, microbatches=4,
        schedule="interleaved", virtual_stages=2, stage_layers=(3, 3, 2, 2),
    )  # fmt: skip
    return ts.simulate(model, plan, ts.Slice("v5p", "4x4x4"))


def test_chunks_that_differ_are_told_apart() -> None:
    one = uneven()
    most: dict[str, int] = {}
    for use in one.timeline.links:
        most[use.link] = max(most.get(use.link, 0), use.volume_nb)
    assert {link: sum(of.values()) for link, of in link_volumes(one).items()} == most
    assert [use.layers for use in pipeline_data(one).stages] == [(3, 2), (3, 2)]
    points = roofline_data(one, 10**6).points
    assert len({point.name for point in points}) == len(points)
    assert sum(point.seconds for point in points) <= one.step_time_s
    assert all(plot(one) for plot in PLOTS)
