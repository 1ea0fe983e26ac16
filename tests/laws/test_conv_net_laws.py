"""Random convolution nets over data x space: what holds however their positions are sharded."""

from collections import Counter
from math import prod

import numpy as np
import pytest
from conv_nets import ConvNet, conv_plan, conv_program, partitioned, sizes
from extent import seeds
from lowered import flops_of, work_of

from tpusim.costs import cost_program
from tpusim.engine import run
from tpusim.graph import Convolution, Pointwise, Pool
from tpusim.hardware import Slice, placements
from tpusim.partition import CollectiveNode, ComputeNode, Purpose, body_nodes
from tpusim.plan import Plan
from tpusim.program import Collective, CollectiveKind, Compute, MatmulWork, Program, walk_ops

POD = "v5e:4x4"


def random_net(seed: int, space: int = 64) -> ConvNet:
    """Convolutions of any kind, norms, residual sums, pools and upsampling."""
    draw = np.random.default_rng(seed)
    net = ConvNet(16, 8 * int(draw.integers(1, 4)), (space, space // 2))
    net.conv(16, int(draw.choice([3, 7])), int(draw.choice([1, 2])))
    for _ in range(int(draw.integers(2, 6))):
        layer = draw.choice(["conv", "grouped", "depthwise", "residual", "pool", "down", "up"])
        match layer:
            case "conv":
                net.conv(
                    8 * int(draw.integers(1, 5)),
                    int(draw.choice([1, 3, 5])),
                    dilation=int(draw.choice([1, 2])),
                )
            case "grouped":
                net.conv(8 * int(draw.integers(1, 5)), groups=4)
            case "depthwise":
                net.conv(0, int(draw.choice([3, 5])), depthwise=True)
            case "residual":
                before = net.x
                net.norm()
                net.conv(net.dims[before.dims[-1]], act=False)
                net.add(before)
            case "pool":
                net.pool(int(draw.choice([2, 3])), 2, bool(draw.integers(2)))
            case "down":
                net.conv(16, 3, 2)
            case "up":
                net.upsample()
    net.norm()
    net.conv(8)
    return net


def plans(seed: int) -> list[Plan]:
    """One device, then data alone, and data and space in several ways."""
    return [
        conv_plan({"data": 1}, 16),
        conv_plan({"data": 16}, 16),
        conv_plan({"data": 4, "space": 4}, 16, height="space"),
        conv_plan({"data": 4, "h": 2, "w": 2}, 16, height="h", width="w"),
        conv_plan({"data": 2, "space": 8}, 16, height="space"),
    ]


def windowed(program: Program) -> list[Compute]:
    return [op for op, _ in walk_ops(program.body) if isinstance(op, Compute) and op.flops.total]


@pytest.mark.parametrize("seed", seeds(40))
def test_flops_of_all_devices_are_those_of_the_net_and_of_padding(seed: int) -> None:
    """Local FLOPs x devices: model + padding, none twice; none padded where all divides."""
    net = random_net(seed)
    model = net.step().model_flops()
    for plan in plans(seed):
        found = [
            (flops_of(node, sizes(net, plan)), node)
            for node, _ in body_nodes(partitioned(net, plan).nodes)
            if isinstance(node, ComputeNode)
        ]
        assert sum(flops.model for flops, _ in found) == model
        assert sum(flops.redundant for flops, _ in found) == 0
        if plan.mesh.get("space", 1) <= 4:
            assert sum(flops.padding for flops, _ in found) == 0
        for flops, node in found:
            if flops.total:
                work = work_of(node, sizes(net, plan), partitioned(net, plan).buffers)
                matmul = isinstance(work, MatmulWork)
                each = 2 * work.m * work.k * work.n if matmul else work.flops
                assert each * prod(plan.mesh.values()) == flops.total


@pytest.mark.parametrize("seed", seeds(40))
def test_gradients_of_kernels_are_summed_over_all_that_shards_the_images(seed: int) -> None:
    net = random_net(seed)
    for plan in plans(seed):
        made = partitioned(net, plan)
        sums = Counter(
            (node.tensor, axis)
            for node, _ in body_nodes(made.nodes)
            if isinstance(node, CollectiveNode)
            and node.purpose is Purpose.GRADIENT
            and node.kind is CollectiveKind.ALL_REDUCE
            for axis in node.axes
        )
        kernels = [p.tensor.name for p in net.graph().parameters]
        active = set(plan.active_axes)
        assert {name for name, _ in sums} == ({f"d({k})" for k in kernels} if active else set())
        for kernel in kernels:
            assert {axis for name, axis in sums if name == f"d({kernel})"} == active


@pytest.mark.parametrize("seed", seeds(40))
def test_without_spatial_axes_nothing_but_gradients_and_statistics_moves(seed: int) -> None:
    net = random_net(seed)
    alone, data, *spatial = (
        [op for op, _ in walk_ops(conv_program(net, plan, pod).body) if isinstance(op, Collective)]
        for plan, pod in zip(plans(seed), ("v5e:1x1", *[POD] * 4), strict=True)
    )
    assert not alone
    assert {op.kind for op in data} == {CollectiveKind.ALL_REDUCE}
    for collectives in spatial:
        kinds = {op.kind for op in collectives}
        assert CollectiveKind.PERMUTE in kinds
        assert kinds <= {
            CollectiveKind.ALL_REDUCE, CollectiveKind.PERMUTE, CollectiveKind.ALL_GATHER,
        }  # fmt: skip


@pytest.mark.parametrize("seed", seeds(40))
def test_statistics_of_a_norm_are_two_sums_a_channel_over_all_devices(seed: int) -> None:
    net = random_net(seed)
    norms = {op.name: op for op in net.ops if isinstance(op, Pointwise) and op.over}
    for plan in plans(seed)[1:]:
        found = [
            node
            for node, _ in body_nodes(partitioned(net, plan).nodes)
            if isinstance(node, CollectiveNode) and node.purpose is Purpose.STATISTICS
        ]
        assert len(found) == 2 * len(norms), "forward and backward"
        for node in found:
            channels = net.dims[norms[node.tensor.removesuffix("/d")].inputs[0].dims[-1]]
            assert sizes(net, plan).nbytes(node.payload, node.dtype) == 2 * 4 * channels
            assert set(node.axes) == set(plan.active_axes)


@pytest.mark.parametrize("seed", seeds(40))
def test_each_windowed_operation_reads_its_halo_and_rows_are_sent_once(seed: int) -> None:
    """No two permutes bring the same rows of a tensor from the same neighbour."""
    net = random_net(seed)
    for plan in plans(seed)[2:]:
        program = conv_program(net, plan, POD)
        permutes = [
            op
            for op, _ in walk_ops(program.body)
            if isinstance(op, Collective) and op.kind is CollectiveKind.PERMUTE
        ]
        assert all(op.bytes > 0 for op in permutes)
        assert len({op.name for op in permutes}) == len(permutes)
        for op in permutes:
            assert not op.parts or sum(part.bytes for part in op.parts) == op.bytes
        names = {op.name for op in permutes}
        waited = {dep.op for op, _ in walk_ops(program.body) for dep in op.deps}
        assert names <= waited, "each is awaited by the operation that reads its rows"


@pytest.mark.parametrize("seed", seeds(10, default=2))
def test_a_step_runs_and_frees_what_it_allocates(seed: int) -> None:
    net = random_net(seed)
    pod = Slice("v5e", "4x4")
    for plan in plans(seed)[1:]:
        program = conv_program(net, plan, POD)
        held = Counter[str]()
        for op, _ in walk_ops(program.body):
            held.update(alloc.tensor for alloc in op.allocs)
            held.subtract(op.frees)
        halos = [key for key in held if "before" in key or "after" in key]
        assert all(held[key] == 0 for key in halos)
        timeline = run([cost_program(program, pod, placements(pod, plan.mesh)[0])])
        assert timeline.total_ps > 0


@pytest.mark.parametrize("seed", seeds(40))
def test_one_structure_serves_many_meshes(seed: int) -> None:
    """Sizes of halos for arrays of meshes are those of each mesh."""
    net = random_net(seed)
    plan = conv_plan({"data": 4, "space": 4}, 16, height="space")
    made, one = partitioned(net, plan), sizes(net, plan)
    meshes = np.array([2.0, 4.0, 8.0])
    many = type(one)(one.dims, {"data": np.array([8.0, 4.0, 2.0]), "space": meshes})
    for node, _ in body_nodes(made.nodes):
        if isinstance(node, CollectiveNode) and node.payload.edge:
            found = many.nbytes(node.payload, node.dtype)
            assert found[1] == one.nbytes(node.payload, node.dtype)


def test_pools_are_vector_work_of_their_bytes() -> None:
    """A pool of 2 x 2 reads four elements for each that it writes, and compares four."""
    net = ConvNet(16, 8, (64, 32))
    net.conv(16, 1, act=False)
    net.pool()
    plan = conv_plan({"data": 4, "space": 4}, 16, height="space")
    made = partitioned(net, plan)
    forward, back = (
        work_of(node, sizes(net, plan), made.buffers)
        for node, _ in body_nodes(made.nodes)
        if isinstance(node, ComputeNode) and isinstance(node.op, Pool)
    )
    read, written = 4 * 16 * 32 * 16 * 2, 4 * 8 * 16 * 16 * 2
    assert (forward.read_bytes, forward.write_bytes) == (read, written)
    assert (back.read_bytes, back.write_bytes) == (read + written, read)
    assert forward.flops == 4 * 4 * 8 * 16 * 16 + (read + written) / 2


def test_epilogues_of_convolutions_are_fused() -> None:
    net = ConvNet(16, 8, (64, 32))
    net.conv(16)
    plan = conv_plan({"data": 16}, 16)
    (conv,) = (
        node
        for node, _ in body_nodes(partitioned(net, plan).nodes)
        if isinstance(node, ComputeNode) and isinstance(node.op, Convolution) and not node.op.given
    )
    assert conv.epilogue[0].name == "net/l1"
    assert "net/l0/y" not in conv.writes, "only the activation reads it, and keeps its own result"
