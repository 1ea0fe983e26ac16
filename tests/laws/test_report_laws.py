"""Laws of the figures and the trace, over random plans: all of them tell the same story."""

import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
from extent import seeds
from reports import (
    TrackSlice,
    core_slices,
    link_loads,
    link_volumes,
    memory_levels,
    resource_name,
    resource_rows,
    stream_tracks,
    torus_panels,
)
from test_any_plan import PODS, random_model, random_plan

from tpusim.costs import cost_program
from tpusim.engine import compile_lane
from tpusim.engine import run as run_engine
from tpusim.hardware import Slice as Pod
from tpusim.program import Collective, Loop, Op
from tpusim.report import (
    axes_data,
    perfect_compiler,
    timeline_data,
    torus_data,
    trace,
    utilisation_data,
)
from tpusim.results import COMPUTE_LABELS, EXPOSED, LEAST_SHOWN, PICO, PlanResult, Result, core_ps
from tpusim.simulation import simulate

SEEDS = seeds(40)


@cache
def result(seed: int, fold: bool = True) -> Result:
    rng = random.Random(seed)
    pod = Pod(*rng.choice(PODS))
    return simulate(random_model(rng), random_plan(rng, pod), pod, fold=fold)


def told(slices: list[TrackSlice]) -> list[tuple[int, int, str]]:
    assert all(each.record for each in slices)
    return [(each.start_ps, each.end_ps, each.record.name) for each in slices if each.record]


def ran(each: TrackSlice) -> bool:
    """Whether the core works in a slice of its own; otherwise it waits for a transfer."""
    return each.record is not None and each.record.stream == "core"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("every", [True, False])
def test_the_core_is_covered_from_end_to_end(seed: int, every: bool) -> None:
    timeline = result(seed).timeline
    slices = core_slices(timeline, every=every)
    assert slices[0].start_ps == 0
    assert slices[-1].end_ps == timeline.total_ps
    assert all(one.end_ps == other.start_ps for one, other in pairwise(slices))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_slices_of_the_core_sum_to_the_breakdown(seed: int) -> None:
    sums: Counter[tuple[str, str]] = Counter()
    for each in core_slices(result(seed).timeline, every=True):
        assert each.record
        known = each.record.label in COMPUTE_LABELS
        label = each.record.label if known else f"{EXPOSED}{each.record.label}"
        sums[label, each.record.phase] += each.length_ps
    assert sums == core_ps(result(seed).timeline)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_unrolled_is_what_runs_unfolded(seed: int) -> None:
    folded, unfolded = result(seed), result(seed, fold=False)
    assert told(core_slices(folded.timeline, every=True)) == told(
        core_slices(unfolded.timeline, every=True)
    )
    one = stream_tracks(folded.timeline, every=True)
    other = stream_tracks(unfolded.timeline, every=True)
    assert {name: list(map(told, tracks)) for name, tracks in one.items()} == {
        name: list(map(told, tracks)) for name, tracks in other.items()
    }
    assert memory_levels(folded) == memory_levels(unfolded)
    spans = [(window.title, window.start_ps, window.end_ps) for window in timeline_data(folded)]
    assert spans == [(w.title, w.start_ps, w.end_ps) for w in timeline_data(unfolded)]


@pytest.mark.parametrize("seed", SEEDS)
def test_both_ends_of_a_loop_are_part_of_all_of_it(seed: int) -> None:
    timeline = result(seed).timeline
    ends, full = (core_slices(timeline, every=every) for every in (False, True))
    shown = [each for each in ends if each.record]
    assert set(told(shown)) <= set(told(full))
    hidden = [each for each in full if not any(
        gap.start_ps <= each.start_ps and each.end_ps <= gap.end_ps
        for gap in ends if gap.record is None
    )]  # fmt: skip
    assert told(hidden) == told(shown)


@pytest.mark.parametrize("seed", SEEDS)
def test_slices_of_transfers_carry_what_the_links_carried(seed: int) -> None:
    run = result(seed)
    code = compile_lane(cost_program(run.program, run.pod, run.placement))
    steps = {step.task.name: step for step in (*code.steps, *code.host)}
    carried = dict.fromkeys((name for name, _ in code.links), 0)
    on_core = [each for each in core_slices(run.timeline, every=True) if ran(each)]
    for each in chain(on_core, *chain(*stream_tracks(run.timeline, every=True).values())):
        assert each.record
        step = steps[each.record.name]
        for link, weight in step.uses:
            carried[code.links[link][0]] += weight * step.volume
    assert carried == {use.link: use.volume_nb for use in run.timeline.links}


@pytest.mark.parametrize("seed", SEEDS)
def test_utilisation_is_the_use_of_the_links_and_the_breakdown(seed: int) -> None:
    run = result(seed)
    volumes = {link: sum(of.values()) for link, of in link_volumes(run).items()}
    assert volumes == {use.link: use.volume_nb for use in run.timeline.links}
    rows = {row.resource: row for row in utilisation_data(run)}
    work, held = rows.pop("core computes"), rows.pop("core communicates")
    assert work.total + held.total == pytest.approx(1, rel=1e-12)
    assert held.total * run.step_time_s == pytest.approx(run.exposed_s, rel=1e-9, abs=1e-15)
    assert {link: row.total for link, row in rows.items()} == {
        link: pytest.approx(use) for link, use in run.link_use.items() if link in rows
    }
    assert not [link for link, use in run.link_use.items() if use and link not in rows]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_perfect_compiler_is_never_slower(seed: int) -> None:
    run = result(seed)
    assert isinstance(run, PlanResult)
    ideal = perfect_compiler(run)
    assert (ideal is None) == (run.plan.compiler.lowering == "ideal")
    if ideal is not None:
        other = simulate(run.model, run.plan.replace(lowering="ideal"), run.pod)
        assert ideal.timeline.total_ps == min(run.timeline.total_ps, other.timeline.total_ps)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_page_has_the_busy_shares_of_the_summary(seed: int) -> None:
    """Directions that are alike are one row; DCN and PCIe are left out where they are idle."""
    run = result(seed)
    shown = {row.name: row.mean for row in resource_rows(run)[1:]}
    for link, share in run.link_use.items():
        name = resource_name(link)
        either = shown.get(name, shown.get(re.sub(r"[+−]$| out$| in$", "", name)))
        if either is None:
            assert share < LEAST_SHOWN
            assert link.startswith(("dcn", "pcie"))
        else:
            assert either == pytest.approx(share, rel=1e-9), link


def alone(run: Result, op: Collective, times: int = 1) -> Result:
    """A run of nothing but one collective, so many times."""
    body = Loop(name="loop", trips=times, body=(replace(op, deps=(), allocs=(), frees=()),))
    program = replace(run.program, body=(body,))
    timeline = run_engine([cost_program(program, run.pod, run.placement)])
    return replace(run, programs=(program,), timeline=timeline)


def collectives(body: tuple[Op, ...], times: int = 1) -> Iterator[tuple[Collective, int]]:
    for op in body:
        if isinstance(op, Loop):
            yield from collectives(op.body, times * op.trips)
        elif isinstance(op, Collective):
            yield op, times


@pytest.mark.parametrize("seed", SEEDS)
def test_the_busiest_link_of_a_collective_is_as_busy_as_its_class(seed: int) -> None:
    run = result(seed)
    kinds = {(op.kind, op.axes, op.algorithm): op for op, _ in collectives(run.program.body)}
    for op in kinds.values():
        one = alone(run, op)
        if not one.timeline.total_ps:
            continue
        uses = {use.link: use.busy_ps / one.timeline.total_ps for use in one.timeline.links}
        slack = max((use for link, use in uses.items() if link.startswith("ici:")), default=0) / 64
        for way, share in torus_data(one).busiest.items():
            assert uses[f"ici:{way}"] - slack - 1e-6 <= share <= uses[f"ici:{way}"] + 1e-6


@pytest.mark.parametrize("seed", SEEDS)
def test_links_are_busy_for_all_collectives_together(seed: int) -> None:
    run = result(seed)
    links = torus_data(run)
    total = np.zeros_like(links.shares)
    for op, times in collectives(run.program.body):
        one = alone(run, op, times)
        if one.timeline.total_ps:
            total += torus_data(one).shares * one.timeline.total_ps
    np.testing.assert_allclose(links.shares, total / run.timeline.total_ps, atol=1e-6)
    rows = {row.resource: row.total for row in utilisation_data(run)}
    for way, share in links.busiest.items():
        assert share <= rows[f"ici:{way}"] + 1e-6
        assert (share > 0) == (rows[f"ici:{way}"] > 1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_panels_show_the_busiest_links_and_no_others(seed: int) -> None:
    links = torus_data(result(seed))
    panels = torus_panels(links).panels
    for way, share in links.busiest.items():
        shown = [panel for panel in panels if way in panel.title.split(",")[0].split(" and ")]
        assert bool(shown) or not share
        if shown:
            assert max(float(np.nanmax(panel.shares)) for panel in shown) == share


@pytest.mark.parametrize("seed", SEEDS)
def test_the_columns_of_the_matrix_are_what_the_links_carried(seed: int) -> None:
    run = result(seed)
    data = axes_data(run)
    carried = {use.link: use.volume_nb * 1e-9 for use in run.timeline.links}
    for link, total in zip(data.columns, data.totals, strict=True):
        assert total == pytest.approx(carried.pop(link), rel=1e-12)
    others = ("hbm", "pcie+", "pcie-")
    assert not [link for link, nbytes in carried.items() if nbytes and link not in others]


@pytest.mark.parametrize("seed", SEEDS)
def test_rates_over_time_carry_every_byte_and_never_more_than_a_link_has(seed: int) -> None:
    run = result(seed)
    rows = link_loads(run, 0, run.timeline.total_ps)
    carried: Counter[str] = Counter()
    for row in rows:
        for link, labels in row.shares.items():
            assert sum(labels.values()) <= 1 + 1e-9
            carried[link] += sum(labels.values()) * (row.end_ps - row.start_ps)
    slack = 4 * sum(task.count for task in run.timeline.tasks)  # rates and times are whole numbers
    for use in run.timeline.links:
        assert carried[use.link] == pytest.approx(use.busy_ps, rel=1e-5, abs=slack)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_memory_counter_reaches_the_peak_and_ends_alike(seed: int) -> None:
    run = result(seed)
    full, ends = (memory_levels(run, every=every) for every in (True, False))
    peak_ps = run.timeline.memory[0].peak_ps
    for levels in (full, ends):
        assert max(level for _, level in levels) == run.hbm_peak_bytes
        assert next(time for time, level in levels if level == run.hbm_peak_bytes) == peak_ps
        times = [time for time, _ in levels]
        assert times == sorted(times)
        assert 0 <= times[0] <= times[-1] <= run.timeline.total_ps
    assert full[-1] == ends[-1]
    assert set(ends) <= set(full)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_window_is_covered_by_the_core_and_by_the_loads(seed: int) -> None:
    windows = timeline_data(result(seed))
    assert windows
    for window in windows:
        for parts in (window.core, window.loads):
            assert parts[0].start_ps == window.start_ps
            assert parts[-1].end_ps == window.end_ps
            assert all(one.end_ps == other.start_ps for one, other in pairwise(parts))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("expand", ["ends", "all"])
def test_no_slices_overlap_on_a_thread_and_all_lie_within_the_step(seed: int, expand: Any) -> None:
    run = result(seed)
    threads: dict[int, list[tuple[int, int]]] = {}
    for event in trace(run, expand)["traceEvents"]:
        if event["ph"] == "X":
            start, length = round(event["ts"] * 10**6), round(event["dur"] * 10**6)
            threads.setdefault(event["tid"], []).append((start, start + length))
        if event["ph"] == "C":
            assert 0 <= round(event["ts"] * 10**6) <= run.timeline.total_ps
    assert threads.pop(0) == [(0, run.timeline.total_ps)]
    for spans in threads.values():
        assert spans[0][0] >= 0
        assert spans[-1][1] <= run.timeline.total_ps
        assert all(one[1] <= other[0] for one, other in pairwise(spans))
    assert sum(end - start for start, end in threads[1]) == run.timeline.total_ps
    assert run.step_time_s == run.timeline.total_ps * PICO
