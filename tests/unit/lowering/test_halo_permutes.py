"""Halos as permutes: sides and distances, what is sent once, and what runs beside them."""

import pytest
from conv_nets import ConvNet, conv_plan, conv_program

from tpusim.base import PlanError
from tpusim.costs import Task, cost_program
from tpusim.hardware import Slice, placements
from tpusim.network import MAX_HALO_DISTANCE, Algorithm, at_distance
from tpusim.program import Collective, CollectiveKind, Compute, Mode, Program, walk_ops

ROW = 8 * 64 * 16 * 2
"""Bytes of a row of a device: 8 of 32 images, which are not cut, 64 wide, 16 channels in bf16."""


def program_of(net: ConvNet, space: int = 4, pod: str = "v5e:4x4") -> Program:
    plan = conv_plan({"data": 4, "space": space}, 32, height="space")
    return conv_program(net, plan, pod)


def net_of(rows: int = 64) -> ConvNet:
    return ConvNet(32, 16, (rows, 64))


def permutes(program: Program) -> list[Collective]:
    return [op for op, _ in walk_ops(program.body) if is_permute(op)]


def is_permute(op: object) -> bool:
    return isinstance(op, Collective) and op.kind is CollectiveKind.PERMUTE


def facts(op: Collective) -> tuple[str, list[float]]:
    return op.algorithm, [part.bytes / ROW for part in op.parts] or [op.bytes / ROW]


@pytest.mark.parametrize(
    ("taps", "given", "expected"),
    [
        (3, {}, [("halo", [1, 1])]),
        (7, {"stride": 2}, [("halo", [2, 3])]),
        (3, {"stride": 2}, [("step", [1])]),
        (3, {"dilation": 16}, [("halo", [16, 16])]),
        (3, {"dilation": 20}, [("halo", [16, 16]), ("halo 2", [4, 4])]),
        (1, {}, []),
    ],
)
def test_a_forward_convolution_receives_its_halo(
    taps: int, given: dict[str, int], expected: list[tuple[str, list[float]]]
) -> None:
    """The gradient of the kernel reads the same rows; the image has no gradient."""
    net = net_of()
    net.conv(16, taps, act=False, **given)
    found = permutes(program_of(net))
    assert [facts(op) for op in found] == expected
    assert all(op.mode is Mode.ASYNC and op.axes == ("space",) for op in found)


def test_a_volume_exchanges_the_rows_that_the_first_dimension_brought() -> None:
    """Corners arrive with the second exchange: 10 rows of 8 and their halo, not 8."""
    net = ConvNet(4, 16, (16, 16, 16))
    net.conv(16, 3, act=False)
    plan = conv_plan({"data": 4, "h": 2, "w": 2}, 4, height="h", width="w")
    found = permutes(conv_program(net, plan, "v5e:4x4"))
    plane = 16 * 16 * 2
    assert [(op.axes, op.bytes) for op in found] == [
        (("h",), 2 * 8 * plane), (("w",), 2 * (8 + 2) * plane),
    ]  # fmt: skip


def test_a_halo_wider_than_all_others_is_a_gather() -> None:
    net = net_of()
    net.conv(16, 3, dilation=24, act=False)
    program = program_of(net)
    assert not permutes(program)
    (gather,) = (
        op
        for op, _ in walk_ops(program.body)
        if isinstance(op, Collective) and op.kind is CollectiveKind.ALL_GATHER
    )
    assert (gather.axes, gather.bytes / ROW) == (("space",), 64)


def test_two_convolutions_of_one_tensor_share_a_halo() -> None:
    """A 3 x 3 and a dilated one: the second has rows of its own; another 3 x 3 has none."""
    counts = []
    for dilations in ((1,), (1, 2), (1, 1)):
        net = net_of()
        before = net.conv(16, 1)
        made = []
        for dilation in dilations:
            net.x = before
            made.append(net.conv(16, 3, dilation=dilation))
        if len(made) > 1:
            net.add(made[0])
        forward = [op for op in permutes(program_of(net)) if op.phase == "forward"]
        counts.append(len(forward))
    assert counts == [1, 2, 1]


def test_the_gradient_of_the_kernel_runs_while_the_halo_arrives() -> None:
    net = net_of()
    net.conv(16)
    net.conv(16, act=False)
    ops = [op for op, _ in walk_ops(program_of(net).body)]
    place = next(at for at, op in enumerate(ops) if is_permute(op) and op.phase == "backward")
    names = [op.name for op in ops[place : place + 3]]
    assert names[1:] == ["net/l2/dw", "net/l2/dx"]
    assert names[0] in {dep.op for dep in ops[place + 2].deps}
    assert names[0] not in {dep.op for dep in ops[place + 1].deps}


def test_a_convolution_reads_its_halo_from_memory() -> None:
    """Two rows more than its shard of 16, of the image."""
    net = net_of()
    net.conv(16, 3, act=False)
    net.norm()
    conv = next(
        op for op, _ in walk_ops(program_of(net).body)
        if isinstance(op, Compute) and op.name == "net/l0"
    )  # fmt: skip
    assert conv.work.read_bytes == (16 + 2) * ROW + 9 * 16 * 16 * 2


def test_a_halo_over_too_many_neighbours_is_refused() -> None:
    net = ConvNet(16, 16, (64, 64))
    net.conv(16, 3, dilation=20, padding=(40, 0), act=False)
    plan = conv_plan({"data": 1, "space": 16}, 16, height="space")
    with pytest.raises(PlanError, match="reaches over 10 neighbours; at most 8 are modelled"):
        conv_program(net, plan, "v5e:4x4")


def test_a_message_to_a_far_neighbour_loads_all_links_between() -> None:
    """Twice the distance, twice the bytes on each link: 40 rows before shards of 16."""
    assert at_distance(Algorithm.HALO, 1) == "halo"
    assert at_distance(Algorithm.STEP, MAX_HALO_DISTANCE) == f"step {MAX_HALO_DISTANCE}"
    net = net_of()
    net.conv(16, 3, dilation=20, padding=(40, 0), act=False)
    program, pod = program_of(net), Slice("v5e", "4x4")
    plan = conv_plan({"data": 4, "space": 4}, 16, height="space")
    costed = cost_program(program, pod, placements(pod, plan.mesh)[0])
    tasks = {task.name: task for task in costed.body if isinstance(task, Task)}
    far = permutes(program)
    assert [facts(op) for op in far] == [("step", [16]), ("step 2", [16]), ("step 3", [8])]
    near, *others = (tasks[op.name].bytes for op in far)
    assert others == pytest.approx([2 * near, 3 * near / 2])


def test_the_gradient_of_a_transposed_kernel_exchanges_mirrored_shards() -> None:
    """Of its input and of its output's gradient, whole; both start before the other gradient."""
    net = net_of()
    net.conv(16, 1)
    net.conv(16, 2, up=2, act=False)
    program = program_of(net)
    found = permutes(program)
    assert [(op.algorithm, op.bytes / ROW) for op in found] == [("mirror", 4 * 16), ("mirror", 16)]
    names = [op.name for op, _ in walk_ops(program.body)]
    places = [names.index(name) for name in (found[1].name, "net/l2/dx", "net/l2/dw")]
    assert places == sorted(places)
