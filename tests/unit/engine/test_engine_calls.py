"""Lanes that call segments: plain operations around the calls, memory, hosts, names and views."""

import pickle
from dataclasses import replace

import pytest
from engine_programs import US, loop, task, transfer
from pipelines import kinds, lanes_of

from tpusim.costs import ON_HOST, CostedProgram, TaskOp, TaskSegment
from tpusim.engine import CallTimes, Fold, RepeatLevel, Timeline, run
from tpusim.engine.timeline import core_time
from tpusim.plan import make_schedule
from tpusim.program import Alloc, Call, Dep, Phase

LINKS = (("hbm", 1e12),)


def call(segment: str, number: int = 0) -> Call:
    return Call(name=f"{segment}{number}", segment=segment, microbatch=number)


def lane(*body: TaskOp | Call, **segments: tuple[TaskOp, ...]) -> CostedProgram:
    made = tuple(TaskSegment(name=name, body=ops) for name, ops in segments.items())
    return CostedProgram(name="lane", body=body, links=LINKS, segments=made)


def starts(timeline: Timeline) -> dict[str, list[int]]:
    return {record.name: [start // US for start in record.starts()] for record in timeline.tasks}


def test_operations_between_calls_are_over_before_the_next_one() -> None:
    """A transfer that nobody waits for holds the next call up, as its links are then free."""
    body = (task("before", 1), transfer("copy", 5), call("F"), task("between", 2), call("F", 1))
    timeline = run([lane(*body, F=(task("work", 3),))])
    assert starts(timeline) == {"before": [0], "copy": [1], "work": [6, 11], "between": [9]}
    (wait,) = timeline.waits
    assert (wait.name, wait.start_ps // US, wait.end_ps // US) == ("copy", 1, 6)


def test_loops_are_folded_within_a_segment() -> None:
    timeline = run([lane(call("F"), call("F", 1), F=(loop(50, task("layer", 2)),))])
    (record,) = timeline.tasks
    assert record.repeats == (CallTimes((0, 100 * US)), RepeatLevel(50, 2 * US))
    assert (record.count, timeline.total_ps) == (100, 200 * US)
    assert list(record.starts()) == [2 * US * trip for trip in range(100)]
    assert timeline.stats.folds == (Fold("loop", 1, 49, 2 * US),)
    whole = run([lane(call("F"), call("F", 1), F=(loop(50, task("layer", 2)),))], fold=False)
    assert whole.stats.folds == ()
    assert sorted(start for each in whole.tasks for start in each.starts()) == list(record.starts())


def test_a_segment_may_depend_on_what_was_over_before() -> None:
    body = (transfer("copy", 5), call("F"), task("after", 1, deps=(Dep("work"), Dep("copy"))))
    timeline = run([lane(*body, F=(task("work", 3, deps=(Dep("copy"),)),))])
    assert timeline.total_ps == 9 * US
    with pytest.raises(ValueError, match="depends on 'nothing', which is no task"):
        run([lane(call("F"), F=(task("work", 3, deps=(Dep("nothing"),)),))])


def test_memory_is_held_from_one_call_to_another() -> None:
    """Three microbatches are in flight when the first backward pass begins; its scratch tops it."""
    forward = task("forward", 1, allocs=(Alloc("saved", 100, "saved activations"),))
    backward = task("backward", 2, frees=("saved", "scratch"), deps=(Dep("start"),),
                    allocs=(Alloc("scratch", 7, "scratch"),))  # fmt: skip
    start = task("start", 0, allocs=(Alloc("sums", 10, "gradients"),))
    end = task("end", 1, frees=("sums",))
    order = "FFFBFBBB"
    calls = tuple(call(name, number) for number, name in enumerate(order))
    one = lane(start, *calls, end, F=(forward,), B=(backward,))
    memory = run([replace(one, resident=(Alloc("weights", 1000, "weights"),))]).memory[0]
    assert memory.peak_bytes == 1000 + 10 + 3 * 100 + 7
    assert memory.peak_ps == 3 * US
    assert {held.tensor: held.count for held in memory.held} == {
        "weights": 1, "sums": 1, "saved": 3, "scratch": 1,
    }  # fmt: skip
    assert sum(change.bytes * change.repeats[0].repeats for change in memory.changes) == 0


def test_memory_that_contradicts_itself_is_refused() -> None:
    taken = task("F", 1, allocs=(Alloc("saved", 100, "saved"),))
    freed = task("B", 1, frees=("saved",))
    with pytest.raises(ValueError, match="tensor 'saved' is freed and not held"):
        run([lane(call("F"), call("B"), call("B", 1), F=(taken,), B=(freed,))])
    with pytest.raises(ValueError, match="frees 'saved', which no task takes"):
        run([lane(call("B"), B=(freed,))])
    other = task("G", 1, allocs=(Alloc("saved", 50, "saved"),))
    with pytest.raises(ValueError, match="tensor 'saved' has 100 and 50 bytes"):
        run([lane(call("F"), call("G"), F=(taken,), G=(other,))])


def test_segments_that_free_what_has_other_sizes_elsewhere_are_run_apart() -> None:
    """The same backward pass frees a tensor of 100 bytes on one lane and of 50 on the other."""
    back = (task("B", 1, frees=("saved",)),)
    lanes = []
    for size in (100, 50):
        taken = task("F", 1, allocs=(Alloc("saved", size, "saved"),))
        lanes.append(lane(call("F"), call("B"), F=(taken,), B=back))
    memory = run(lanes).memory
    assert [each.peak_bytes for each in memory] == [100, 50]
    assert [[change.bytes for change in each.changes] for each in memory] == [
        [100, -100],
        [50, -50],
    ]


def test_each_lane_waits_for_its_host_and_then_for_the_others() -> None:
    host = task("make batch", stream=ON_HOST, label="input", delay_s=5e-6)
    short = lane(call("F"), F=(task("one", 2),))
    long = lane(call("F"), F=(task("two", 9),))
    timeline = run([replace(short, host=(host,)), replace(long, host=(host,))])
    waits = [
        (each.lane, each.label, each.start_ps // US, each.end_ps // US) for each in timeline.waits
    ]
    assert waits == [(0, "input", 2, 5), (0, "bubble", 5, 9)]
    assert [end // US for _, end in timeline.lanes] == [5, 9]
    assert timeline.device_ps == 9 * US
    alone = run([replace(short, host=(host,))])
    assert (alone.total_ps, alone.device_ps) == (5 * US, 2 * US)


def test_a_bubble_has_the_phase_of_what_waits() -> None:
    timeline = run(lanes_of(make_schedule("1f1b", 2, 2), kinds(5, 9), lambda stage, slot: 0))
    phases = {(each.lane, each.phase) for each in timeline.waits}
    assert phases == {(0, Phase.BACKWARD), (1, Phase.FORWARD), (1, Phase.BACKWARD)}


def test_records_are_made_when_they_are_asked_for() -> None:
    """What is known of them before is what they sum to."""
    timeline = run(lanes_of(make_schedule("zb-h1", 3, 4), kinds(5, 9, 2), lambda stage, slot: 3))
    early = timeline.core_ps
    tasks = timeline.tasks
    core = core_time(each for each in (*tasks, *timeline.waits) if each.stream != "ici:stage")
    core += core_time(each for each in timeline.waits if each.stream == "ici:stage")
    assert early == core == replace(timeline, tasks=tuple(tasks)).core_ps
    assert sum(early.values()) == 3 * timeline.total_ps
    assert tasks[0] in tasks[:1] == tuple(tasks)[:1]
    assert len(tasks) == len(list(tasks)) == len(set(tasks))
    assert pickle.loads(pickle.dumps(timeline)) == timeline
    assert hash(tasks) == hash(tuple(tasks))
    assert repr(tasks) == repr(tuple(tasks))
