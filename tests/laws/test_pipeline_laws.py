"""The engine of several lanes against the closed form of a pipeline, to the picosecond."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipelines import calls_in, kinds, lane_of, lanes_of, simulated, slots_in
from schedules import slot_times

from tpusim.engine import StalledError, Timeline, run
from tpusim.plan import make_schedule
from tpusim.program import Call, Schedule


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    name = draw(st.sampled_from(["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2"]))
    stages, more = draw(st.integers(1, 5)), draw(st.integers(0, 6))
    if name == "interleaved":
        return make_schedule(name, stages, stages * (1 + more % 3), draw(st.integers(1, 3)))
    return make_schedule(name, stages, 2 * stages - 1 + more)


@st.composite
def pipelines(draw: st.DrawFn):  # type: ignore[no-untyped-def]
    """A schedule, and times of each stage's kinds of slots and of their messages."""
    schedule = draw(schedules())
    keys = {(stage, slot.kind, slot.chunk)
            for stage, slots in enumerate(schedule.slots) for slot in slots}  # fmt: skip
    many = st.lists(st.integers(0, 50), min_size=len(keys), max_size=len(keys))
    lasts, travels = (dict(zip(sorted(keys), draw(many), strict=True)) for _ in range(2))
    return (
        schedule,
        lambda stage, slot: lasts[stage, slot.kind, slot.chunk],
        lambda stage, slot: travels[stage, slot.kind, slot.chunk],
    )


def core_of(timeline: Timeline, lane: int) -> list[tuple[int, int]]:
    """All that the core of a lane does or waits for, in order of time."""
    core = (record for record in timeline.tasks if record.stream == "core")
    return sorted(
        (start, start + record.duration_ps)
        for record in (*core, *timeline.waits)
        if record.lane == lane and record.duration_ps
        for start in record.starts()
    )


@given(pipelines())
def test_the_engine_runs_each_slot_when_the_closed_form_says(pipeline) -> None:  # type: ignore[no-untyped-def]
    schedule, lasts, travels = pipeline
    timeline = simulated(schedule, lasts, travels)
    expected = slot_times(schedule, lasts, travels)
    assert calls_in(timeline) == slots_in(expected)
    assert timeline.total_ps == max(slot.end for slot in expected)


@given(pipelines())
def test_work_and_waits_cover_the_step_of_every_lane(pipeline) -> None:  # type: ignore[no-untyped-def]
    timeline = simulated(*pipeline)
    for lane in range(len(timeline.lanes)):
        spans = core_of(timeline, lane)
        edges = [0, *(end for _, end in spans)]
        assert [start for start, _ in spans] == edges[:-1]
        assert edges[-1] == timeline.total_ps


@given(pipelines())
def test_no_wait_is_negative_and_all_is_the_same_again(pipeline) -> None:  # type: ignore[no-untyped-def]
    timeline = simulated(*pipeline)
    assert all(wait.duration_ps > 0 for wait in timeline.waits)
    assert simulated(*pipeline) == timeline


@given(schedules())
def test_free_transfers_leave_bubbles_alone(schedule: Schedule) -> None:
    waits = simulated(schedule, kinds(2, 3, 2)).waits
    assert {wait.label for wait in waits} <= {"bubble"}


def test_a_wait_is_split_where_the_sender_is_done() -> None:
    """Stage 1 waits 10 for stage 0 to make its first microbatch, and 4 for it to arrive."""
    timeline = simulated(make_schedule("1f1b", 2, 1), kinds(10, 20), lambda stage, slot: 4)
    mine = [(wait.label, wait.name, wait.start_ps, wait.end_ps)
            for wait in timeline.waits if wait.lane == 1]  # fmt: skip
    assert mine == [
        ("bubble", "F.0", 0, 10),
        ("stage", "F.0 to 1", 10, 14),
        ("bubble", "bubble", 44, 68),
    ]
    other = [(wait.label, wait.start_ps, wait.end_ps) for wait in timeline.waits if wait.lane == 0]
    assert other == [("bubble", 10, 44), ("stage", 44, 48)]


def test_messages_of_one_lane_to_another_leave_one_after_another() -> None:
    """A link that takes three times as long as a slot sets the pace."""
    timeline = simulated(make_schedule("gpipe", 2, 4), kinds(10, 10), lambda stage, slot: 30)
    (sends,) = (task for task in timeline.tasks if task.name == "F.0 to 1")
    assert list(sends.starts()) == [10, 40, 70, 100]
    (forward,) = (task for task in timeline.tasks if task.name == "F.0" and task.lane == 1)
    assert list(forward.starts()) == [40, 70, 100, 130]


def test_one_stage_is_no_pipeline() -> None:
    for name in ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2"):
        schedule = make_schedule(name, 1, 6)
        timeline = simulated(schedule, kinds(7, 11, 0), lambda stage, slot: 1000)
        assert timeline.total_ps == 6 * (7 + 11)
        assert timeline.waits == ()


def test_links_carry_what_segments_and_messages_put_on_them() -> None:
    """8 bytes at 10^12 B/s are under way for 8 ps, so the engine adds no time of its own."""
    schedule = make_schedule("1f1b", 3, 5)
    lanes = []
    for lane in lanes_of(schedule, kinds(3, 4), lambda stage, slot: 0):
        ways = tuple(
            replace(way, task=replace(way.task, bytes=8.0, uses=(("ici:x+", 1),)))
            for way in lane.messages
        )
        lanes.append(replace(lane, messages=ways))
    timeline = run(lanes)
    assert timeline.total_ps == max(
        slot.end for slot in slot_times(schedule, kinds(3, 4), lambda stage, slot: 8)
    )
    volumes = {(use.lane, use.link): use.volume_nb // 10**9 for use in timeline.links}
    assert [volumes[lane, "hbm"] for lane in range(3)] == [10, 10, 10]
    assert [volumes[lane, "ici:x+"] for lane in range(3)] == [8 * 5, 8 * 10, 8 * 5]


def test_a_shared_segment_is_simulated_once() -> None:
    schedule = make_schedule("1f1b", 4, 16)
    lanes = lanes_of(schedule, kinds(30, 40), lambda stage, slot: 1)
    first = lanes[0]
    timeline = run([replace(lane, links=first.links, segments=first.segments) for lane in lanes])
    apart = run(lanes)
    assert timeline == apart
    segments, events = 2, 3
    assert apart.stats.events - timeline.stats.events == 3 * segments * events


def test_lanes_that_wait_for_each_other_say_so() -> None:
    schedule = make_schedule("1f1b", 2, 2)
    backwards = Schedule("stuck", 2, 1, (schedule.slots[0][::-1], schedule.slots[1]))
    with pytest.raises(StalledError, match=r"lane 'stage 0' waits before B1 for 'B1 of 1'"):
        simulated(backwards, kinds(1, 2))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"segment": "G"}, "a call runs 'G', which is no segment"),
        ({"awaits": ("nothing",)}, "waits before F0 for 'nothing'"),
    ],
)
def test_a_lane_that_contradicts_itself_is_refused(
    change: dict[str, object], sentence: str
) -> None:
    lane = lane_of(make_schedule("1f1b", 1, 1), 0, kinds(1, 2), lambda stage, slot: 0)
    first, *rest = lane.body
    assert isinstance(first, Call)
    broken = replace(lane, body=(replace(first, **change), *rest))
    with pytest.raises((ValueError, StalledError), match=sentence):
        run([broken])


def test_a_message_is_sent_once() -> None:
    lanes = lanes_of(make_schedule("1f1b", 2, 2), kinds(1, 2), lambda stage, slot: 0)
    first, *rest = lanes[0].body
    twice = replace(lanes[0], body=(first, first, *rest))
    with pytest.raises(ValueError, match="sends 'F0 of 0', which has been sent"):
        run([twice, lanes[1]])
