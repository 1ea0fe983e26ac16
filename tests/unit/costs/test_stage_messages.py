"""What a stage sends to its neighbours: seconds and links of one way along the stage axis."""

from dataclasses import replace

import pytest
from pipelines import calls_of, programs_of

from tpusim.costs import (
    CostedProgram,
    Task,
    alone_seconds,
    capacities,
    cost_programs,
    delay_seconds,
    link_seconds,
    route,
    shift_route,
)
from tpusim.engine import run
from tpusim.hardware import Slice, placements
from tpusim.plan import make_schedule
from tpusim.program import Call, CollectiveKind

MIB = 2.0**20
V5P = Slice("v5p", "4x4x8")


def tasks_of(pod: Slice, mesh: dict[str, int], chunks: int = 1) -> dict[tuple[int, int], Task]:
    """The task of what each stage sends to another one, on the first placement of a mesh."""
    axis = next(axis for axis in mesh if "stage" in axis)
    name = "interleaved" if chunks > 1 else "1f1b"
    schedule = make_schedule(name, mesh[axis], 2 * mesh[axis], chunks)
    programs = [replace(p, axes=tuple(mesh.items())) for p in programs_of(schedule, axis, MIB)]
    lanes = cost_programs(programs, pod, placements(pod, mesh)[0])
    return {(at, way.to): way.task for at, lane in enumerate(lanes) for way in lane.messages}


def test_one_way_on_a_ring_takes_half_of_a_permute_both_ways() -> None:
    placement = placements(V5P, {"stage": 8, "fsdp": 16})[0]
    spans, chip = placement.spans("stage"), V5P.chip
    both = route(CollectiveKind.PERMUTE, spans, V5P.topology)
    for backward in (False, True):
        path = shift_route(tuple(spans), V5P.topology, backward, closed=True)
        assert link_seconds(path, MIB, chip) == link_seconds(both, 2 * MIB, chip)
        assert delay_seconds(path, chip) == delay_seconds(both, chip)


def test_neighbours_send_over_the_links_of_their_direction() -> None:
    tasks = tasks_of(V5P, {"stage": 4, "fsdp": 32})
    assert {link for link, _ in tasks[1, 2].uses} == {"ici:x+", "hbm"}
    assert {link for link, _ in tasks[2, 1].uses} == {"ici:x-", "hbm"}
    assert tasks[1, 2].label == "stage"
    assert tasks[1, 2].stream == "ici:stage"
    links = capacities(V5P.chip)
    seconds = V5P.chip.costs.collective_launch + V5P.chip.costs.hop_latency + MIB / links["ici:x+"]
    assert alone_seconds(tasks[1, 2], links) == pytest.approx(seconds, rel=1e-12)


def test_the_last_stage_reaches_the_first_over_the_wrap_or_all_the_way_back() -> None:
    """Chunk 1 follows on stage 0: one hop on the ring of 4, three on a line of 4 of 8."""
    ring = tasks_of(V5P, {"stage": 4, "fsdp": 32}, chunks=2)
    assert (ring[3, 0].uses, ring[3, 0].delay_s) == (ring[0, 1].uses, ring[0, 1].delay_s)
    line = tasks_of(Slice("v5e", "4x4"), {"stage": 4, "fsdp": 4}, chunks=2)
    assert {link for link, _ in line[3, 0].uses} == {"ici:x+", "ici:x-", "hbm"}
    assert line[3, 0].delay_s - line[0, 1].delay_s == pytest.approx(
        2 * Slice("v5e", "4x4").chip.costs.hop_latency
    )


def test_across_slices_messages_take_dcn() -> None:
    pod = Slice("v5p", "2x2x2", num_slices=4)
    task = tasks_of(pod, {"dcn_stage": 4, "fsdp": 8})[0, 1]
    assert task.stream == "dcn"
    assert task.label == "dcn_stage"
    chip = pod.chip
    seconds = chip.costs.collective_launch + chip.costs.dcn_latency
    seconds += MIB / capacities(chip)["dcn+"]
    assert alone_seconds(task, capacities(chip)) == pytest.approx(seconds, rel=1e-12)


def test_between_the_two_devices_of_a_chip() -> None:
    pod = Slice("7x", "2x2x1")
    placement = next(p for p in placements(pod, {"stage": 2, "fsdp": 4})
                     if any(link for link in p.spans("stage") if link.dim < 0))  # fmt: skip
    path = shift_route(tuple(placement.spans("stage")), pod.topology, False, False)
    assert dict(path.uses)["die+"] == 64
    assert "die-" not in dict(path.uses)


def lanes_of(stages: int) -> tuple[CostedProgram, ...]:
    programs = programs_of(make_schedule("1f1b", stages, 8))
    pod = Slice("v5p", "2x2x1")
    return cost_programs(programs, pod, placements(pod, {"stage": stages})[0])


def test_what_stages_share_is_costed_once() -> None:
    lanes = lanes_of(4)
    assert lanes[0].segments[0] is lanes[3].segments[0]
    assert lanes[1].messages[0].task is lanes[2].messages[0].task
    assert lanes[0].body[-1] is lanes[3].body[-1]


def test_a_pipeline_runs_from_its_programs() -> None:
    """The update depends on a backward pass, which is over when it begins."""
    timeline = run(lanes_of(4))
    assert {record.label for record in timeline.tasks} == {"matmul", "vector", "stage"}
    updates = [record for record in timeline.tasks if record.name == "update"]
    assert [record.end_ps for record in updates] == [end for _, end in timeline.lanes]
    assert timeline.device_ps == timeline.total_ps == timeline.lanes[0][1]
    assert run(lanes_of(4), network="hops") == timeline


def test_a_stage_that_is_no_neighbour_is_refused() -> None:
    programs = programs_of(make_schedule("1f1b", 4, 8))
    call = next(calls_of(make_schedule("1f1b", 4, 8), 0))
    (send,) = call.sends
    wrong = replace(call, sends=(replace(send, to=2),))
    programs[0] = replace(programs[0], body=(wrong,))
    pod = Slice("v5p", "2x2x1")
    with pytest.raises(ValueError, match="stage 0 of 4 sends to stage 2, which is no neighbour"):
        cost_programs(programs, pod, placements(pod, {"stage": 4})[0])


def test_two_sizes_of_one_segment_are_two_ways() -> None:
    programs = programs_of(make_schedule("1f1b", 2, 4))
    calls = [op for op in programs[0].body if isinstance(op, Call)]
    (send,) = calls[0].sends
    large = replace(calls[0], sends=(send, replace(send, message="more", bytes=3 * MIB)))
    programs[0] = replace(programs[0], body=(large, *programs[0].body[1:]))
    pod = Slice("v5p", "2x2x1")
    ways = cost_programs(programs, pod, placements(pod, {"stage": 2, "data": 2})[0])[0].messages
    assert [(way.bytes, way.task.name) for way in ways] == [
        (MIB, "F.0 to next"),
        (3 * MIB, "F.0 to next (2)"),
    ]
