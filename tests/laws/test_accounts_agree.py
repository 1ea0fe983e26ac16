"""200 steps of every kind: all that tells of a step tells of the same picoseconds.

Breakdown, timeline, utilisation, critical path, trace and memory are made from one `Timeline` by
code of their own; here each is added up and set against it.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from extent import seeds
from hlo import DATA
from replays import called_replay, small_replay
from reports import (
    COUNTER_COLUMNS,
    OPS_THREAD,
    SLOT_THREAD,
    core_slices,
    resource_name,
    stream_tracks,
)
from test_any_plan import (
    Case,
    context_plan,
    expert_plan,
    latent_plan,
    plain_plan,
    plan_across_slices,
    quantised_plan,
    random_model,
    random_plan,
    tiled_plan,
)
from test_device_classes import PODS as SLOW_PODS
from test_device_classes import random_slow
from test_pipelines import CASES, piped

import tpusim as ts
from tpusim.base import TpusimError
from tpusim.costs import CORE, ON_HOST
from tpusim.engine.journal import repeat_count
from tpusim.hardware import Slice
from tpusim.report import document, pipeline_data, timeline_data, trace, utilisation_data
from tpusim.results import BUBBLE_LABEL, COMPUTE_LABELS, PICO, Result, breakdown_ps, core_ps, limits
from tpusim.simulation import simulate


def slow_plan(seed: int) -> Case:
    """Return a plan on a slice with slow parts, whose devices differ."""
    rng = random.Random(seed)
    chip, shape, slices = rng.choice(SLOW_PODS)
    healthy = Slice(chip, shape, slices)
    pod = Slice(chip, shape, slices, slow=random_slow(rng, healthy))
    return random_model(rng), random_plan(rng, pod), pod


def fed_plan(seed: int) -> Case:
    """Return a plan whose host may be slower than its devices."""
    model, plan, pod = plain_plan(seed)
    rng = random.Random(seed)
    loop = rng.choice(["asynchronous", "synchronous"])
    return model, plan.replace(input_s=10 ** rng.uniform(-4, 0), loop=loop), pod


PLANS: tuple[Callable[[int], Case], ...] = (
    plain_plan, plan_across_slices, expert_plan, slow_plan, latent_plan, quantised_plan,
    tiled_plan, context_plan, fed_plan,
)  # fmt: skip
FIXTURES = sorted(path.name for path in DATA.glob("*.hlo.gz"))


def of_plan(seed: int) -> Result:
    """A plan of a kind; one that is refused gives way to the next."""
    number, kind = divmod(seed, len(PLANS))
    for attempt in range(100):
        try:
            return simulate(*PLANS[kind](1000 * number + attempt))
        except TpusimError:
            continue
    raise AssertionError


def of_pipeline(seed: int) -> Result:
    return piped(*CASES[7 * seed % len(CASES)])


def of_replay(seed: int) -> Result:
    """A compiled program where a fixture can be read; every other one needs no reader."""
    if seed % 2:
        return (small_replay, called_replay)[seed // 2 % 2]()
    pytest.importorskip("jaxlib", reason="reading HLO needs the extra `xla`")
    return ts.simulate(ts.xla.load(DATA / FIXTURES[seed // 2 % len(FIXTURES)]))


@cache
def result(seed: int) -> Result:
    """Of each twelve seeds nine are plans, two pipelines, and one is a replay."""
    number, kind = divmod(seed, 12)
    if kind == 3:
        return of_replay(number)
    if kind in (7, 11):
        return of_pipeline(2 * number + (kind == 11))
    return of_plan(9 * number + kind - (kind > 3) - (kind > 7))


SEEDS = pytest.mark.parametrize("seed", seeds(200, default=4))


def devices(run: Result, lane: int) -> int:
    return run.timeline.devices[lane] if run.timeline.devices else 1


def events(run: Result) -> tuple[dict[str, Any], ...]:
    return tuple(trace(run, "all")["traceEvents"])


def picoseconds(event: dict[str, Any]) -> tuple[int, int]:
    """Start and end of an event; its times are parts of a microsecond."""
    start = event["ts"]
    return round(start * 10**6), round((start + event["dur"]) * 10**6)


@SEEDS
def test_breakdown_and_critical_path_sum_to_the_step(seed: int) -> None:
    run = result(seed)
    total = run.timeline.total_ps
    assert run.step_time_s == total * PICO
    assert sum(breakdown_ps(run.timeline).values()) == total
    assert sum(core_ps(run.timeline).values()) == total
    found = limits(run)
    assert sum(limit.picoseconds for limit in found) == total
    assert sum(limit.share for limit in found) == pytest.approx(1, rel=1e-12)
    written = document(run)
    assert sum(written["breakdown_s"].values()) == pytest.approx(run.step_time_s, rel=1e-12)


@SEEDS
def test_timeline_and_trace_have_the_picoseconds_of_the_breakdown(seed: int) -> None:
    """Slices of each core follow one another over the whole step, in both, label by label."""
    run = result(seed)
    drawn: Counter[tuple[str, str]] = Counter()
    traced: Counter[tuple[str, str]] = Counter()
    spans: dict[int, list[tuple[int, int]]] = {}
    for event in events(run):
        if event["ph"] == "X" and event["tid"] == OPS_THREAD:
            start, end = picoseconds(event)
            cell = event["args"]["label"], event["args"]["phase"]
            traced[cell] += devices(run, event["pid"]) * (end - start)
            spans.setdefault(event["pid"], []).append((start, end))
    for lane in range(len(run.timeline.lanes)):
        slices = core_slices(run.timeline, lane, every=True)
        for each in slices:
            assert each.record
            drawn[each.record.label, str(each.record.phase)] += devices(run, lane) * each.length_ps
        assert [(each.start_ps, each.end_ps) for each in slices] == spans[lane]
        assert slices[0].start_ps == 0
        assert slices[-1].end_ps == run.timeline.total_ps
        assert all(one[1] == other[0] for one, other in pairwise(spans[lane]))
    exact = {(label, str(phase)): ps for (label, phase), ps in run.timeline.core_ps.items() if ps}
    assert drawn == traced == exact


@SEEDS
def test_transfers_of_the_trace_are_those_of_the_timeline(seed: int) -> None:
    """Each stream is busy for as long in the records, in the tracks and in the trace."""
    run = result(seed)
    for lane in range(len(run.timeline.lanes)):
        records: Counter[str] = Counter()
        for record in run.timeline.tasks:
            if record.lane == lane and record.stream != CORE and record.duration_ps:
                records[record.stream] += record.total_ps
        tracks = stream_tracks(run.timeline, lane, every=True)
        assert records == {
            stream: sum(each.length_ps for track in several for each in track)
            for stream, several in tracks.items()
        }
    moved = sum(
        end - start
        for event in events(run)
        if event["ph"] == "X" and OPS_THREAD < event["tid"] < SLOT_THREAD
        for start, end in (picoseconds(event),)
    )
    assert moved == sum(record.total_ps for record in run.timeline.tasks if record.stream != CORE)


@SEEDS
def test_utilisation_is_the_breakdown_and_the_busy_time_of_the_links(seed: int) -> None:
    run = result(seed)
    total, rows = run.timeline.total_ps, utilisation_data(run)
    core: Counter[str] = Counter()
    for row in rows:
        if row.resource.startswith("core "):
            for label, share in row.shares.items():
                core[label] += round(share * total)
    known = breakdown_ps(run.timeline)
    assert core == {label.removeprefix("exposed "): ps for label, ps in known.items() if ps}
    busy = {row.resource: row.total * total for row in rows if not row.resource.startswith("core ")}
    for link in {use.link for use in run.timeline.links}:
        longest = max(use.busy_ps for use in run.timeline.links if use.link == link)
        assert abs(busy.get(link, 0) - longest) <= 1
        assert longest <= total
    works = next(row for row in rows if row.resource == "core computes")
    assert round(works.total * total) == sum(known.get(label, 0) for label in COMPUTE_LABELS)
    if isinstance(run, ts.PlanResult):
        stages = pipeline_data(run)
        rounded = len(stages.stages) / total
        assert run.bubble == pytest.approx(stages.bubble, abs=rounded)
        waits = known.get(BUBBLE_LABEL, 0) / total
        computed = sum(_length(stage.unread) for stage in stages.stages)
        unread = computed / max(1, len(stages.stages)) / total
        assert run.bubble == pytest.approx(waits + unread, abs=rounded)
        assert 0 <= min(waits, unread) == 0


def _length(spans: Iterable[tuple[int, int]]) -> int:
    return sum(end - start for start, end in spans)


@SEEDS
def test_busy_counters_of_the_trace_add_up_to_the_busy_time_of_the_links(seed: int) -> None:
    """Counters have four decimals."""
    run = result(seed)
    total = run.timeline.total_ps
    series: dict[str, list[tuple[int, float]]] = {}
    for event in events(run):
        if event["ph"] == "C" and event["name"].startswith("busy "):
            assert 0 <= event["args"]["share"] <= 1
            series.setdefault(event["name"], []).append(
                (round(event["ts"] * 10**6), event["args"]["share"])
            )
    slack = (
        4 * sum(task.count for task in run.timeline.tasks) / total + 5e-5 + 1 / COUNTER_COLUMNS**2
    )
    for use in run.timeline.links:
        if use.lane != run.lane:
            continue
        levels = series.get(f"busy {resource_name(use.link)}", [])
        ends = [*(time for time, _ in levels[1:]), total]
        counted = sum(
            share * (end - start) for (start, share), end in zip(levels, ends, strict=bool(levels))
        ) if levels else 0  # fmt: skip
        share = use.busy_ps / total
        assert abs(counted / total - share) <= slack


@SEEDS
def test_memory_counters_of_the_trace_are_the_memory_of_the_result(seed: int) -> None:
    run = result(seed)
    peaks = []
    for lane, memory in enumerate(run.timeline.memory):
        levels = [
            (round(event["ts"] * 10**6), event["args"]["bytes"])
            for event in events(run)
            if event["ph"] == "C" and event["name"] == "HBM" and event["pid"] == lane
        ]
        top = max(level for _, level in levels)
        assert next(time for time, level in levels if level == top) == memory.peak_ps
        outputs = sum(
            repeat_count(change.repeats) * nbytes
            for change in memory.changes for category, nbytes in change.by_category
            if category == "outputs"
        )  # fmt: skip
        assert levels[-1][1] - levels[0][1] == run.counted_bytes(lane, outputs)
        assert [time for time, _ in levels] == sorted(time for time, _ in levels)
        peaks.append(top)
    assert max(peaks) == peaks[run.lane] == run.hbm_peak_bytes
    assert sum(run.memory_bytes.values()) == run.hbm_peak_bytes


@SEEDS
def test_windows_of_the_timeline_are_parts_of_the_step(seed: int) -> None:
    """Each is what the core does from its start to its end, as the whole timeline has it."""
    run = result(seed)
    lane = run.lane
    whole = core_slices(run.timeline, lane, every=True)
    for window in timeline_data(run):
        inside = [
            (max(each.start_ps, window.start_ps), min(each.end_ps, window.end_ps), each.record.name)
            for each in whole
            if each.record and each.start_ps < window.end_ps and each.end_ps > window.start_ps
        ]
        shown = [
            (each.start_ps, each.end_ps, each.record.name) for each in window.core if each.record
        ]
        assert shown == inside
        assert sum(end - start for start, end, _ in shown) == window.end_ps - window.start_ps


@pytest.mark.thorough
def test_every_kind_is_among_the_few() -> None:
    """In the normal run too: pipelines, slices, experts, slow parts, hosts and replays."""
    runs = [result(seed) for seed in range(24) if seed % 12 != 3]
    assert any(len(run.programs) > 1 for run in runs)
    assert any(run.pod.num_slices > 1 for run in runs)
    assert any(run.timeline.devices for run in runs)
    assert any(
        wait.stream == ON_HOST or wait.stream.startswith(ON_HOST)
        for run in runs for wait in run.timeline.waits
    )  # fmt: skip
    models = [run.model for run in runs if isinstance(run, ts.PlanResult)]
    assert any(model.has_experts for model in models)
