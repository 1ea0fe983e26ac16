"""Statistics of channels: where they are summed, and what reads a normalised tensor through."""

from collections.abc import Callable

import pytest
from lowered import work_of
from steps import partitioned_graph

from tpusim.graph import Graph, GraphWriter, Remat, Tensor, training_step
from tpusim.models import pieces
from tpusim.partition import ComputeNode, PartitionedGraph, Sizes
from tpusim.plan import Plan
from tpusim.program import ConvolutionWork, MatmulWork

Net = Callable[[GraphWriter, Tensor], Tensor]


def step_of(net: Net, batch: int = 16, channels: int = 64) -> Graph:
    w = GraphWriter("net", {"batch": batch})
    x = pieces.images(w, "image", channels, height=32, width=32)
    made = pieces.mean_of_positions(w, "pooled", net(w, convolved(w, "first", x)))
    return training_step(w.graph(pieces.classification_loss(w, made, 10)), Remat())


def convolved(w: GraphWriter, name: str, x: Tensor, taps: int = 3) -> Tensor:
    return pieces.convolution(w, name, x, 64, (taps, taps))


def normed(w: GraphWriter, name: str, x: Tensor, *terms: Tensor) -> Tensor:
    return pieces.relu(w, f"{name}_relu", pieces.batch_norm(w, f"{name}_norm", x), *terms)


def partitioned(net: Net, data: int = 4) -> PartitionedGraph:
    return partitioned_graph(step_of(net), Plan(mesh={"data": data}, global_batch=16))


def nodes(graph: PartitionedGraph) -> dict[str, ComputeNode]:
    return {node.name: node for node in graph.nodes if isinstance(node, ComputeNode)}


def one_reader(w: GraphWriter, x: Tensor) -> Tensor:
    return convolved(w, "second", normed(w, "a", x))


@pytest.mark.parametrize("data", [1, 4])
def test_a_convolution_sums_what_the_norm_of_its_result_needs(data: int) -> None:
    """Also on one device, where nothing is between the two, the norm waits for all of the sums."""
    found = nodes(partitioned(one_reader, data))
    assert [group.name for group in found["first"].epilogue] == ["a_norm/own_sums"]
    assert found["first"].writes == ("first_out", "a_norm/own_sums")
    assert "a_norm" not in found


def test_the_sums_are_reduced_once_each_way() -> None:
    graph = partitioned(one_reader)
    names = [node.name for node in graph.nodes]
    assert names.count("all-reduce/a_norm/sums") == names.count("all-reduce/a_norm/d/sums") == 1

    def on_device(w: GraphWriter, x: Tensor) -> Tensor:
        return convolved(w, "second", pieces.device_norm(w, "a_norm", x))

    own = [node.name for node in partitioned(on_device).nodes]
    assert not [name for name in own if name.endswith("/sums")]


def test_what_only_convolutions_read_is_never_written() -> None:
    """The second convolution, its gradients and the mask of the rectifier compute it again."""
    graph = partitioned(one_reader)
    found = nodes(graph)
    for name in ("second", "second/dx", "second/dw"):
        assert "a_norm" in [group.name for group in found[name].generated]
        assert "first_out" in found[name].reads
    assert not [node for node in graph.nodes if "a_relu" in node.writes]
    assert [group.name for group in found["second/dx"].epilogue] == [
        "a_relu/d", "a_norm/d/own_sums",
    ]  # fmt: skip
    assert [group.name for group in found["first/dw"].generated] == ["a_norm/d"]


def test_what_a_pool_reads_is_written() -> None:
    def net(w: GraphWriter, x: Tensor) -> Tensor:
        return pieces.pool(w, "pool", normed(w, "a", x), 2, 2)

    found = nodes(partitioned(net))
    assert found["a_norm"].writes == ("a_relu",)
    assert [group.name for group in found["a_norm"].epilogue] == ["a_relu"]


def test_a_sum_of_two_tensors_is_written_where_reading_both_is_more() -> None:
    """With n readers, 2 n reads against two reads, one write and n reads: three readers at most.

    Two convolutions make five readers: forward, for both kernels, and the mask. One makes three.
    """

    def several(w: GraphWriter, x: Tensor, count: int) -> Tensor:
        short = convolved(w, "short", x)
        y = normed(w, "a", convolved(w, "b", x), short)
        made = [convolved(w, f"c{n}", y) for n in range(count)]
        return made[0] if count == 1 else w.add("both", *made)

    two = nodes(partitioned(lambda w, x: several(w, x, 2)))
    assert two["a_norm"].writes == ("a_relu",)
    one = nodes(partitioned(lambda w, x: several(w, x, 1)))
    assert "a_norm" not in one
    assert "short_out" in one["c0"].reads


def test_norms_over_the_last_dimension_are_one_pass() -> None:
    def net(w: GraphWriter, x: Tensor) -> Tensor:
        return convolved(w, "second", pieces.layer_norm(w, "norm", x, x.dims[-1]))

    found = nodes(partitioned(net))
    assert found["norm"].op.inputs[0].name == "first_out"
    assert "norm/own_sums" not in found
    assert not found["second"].generated


@pytest.mark.parametrize(
    ("batch", "channels", "factor"),
    [
        (128, 64, 1.0),
        (64, 64, 2.0),
        (32, 320, 1.2),
        (16, 128, 1.0),
        (12, 128, 16 / 12),
        (1, 32, 4.0),
        (128, 3, 4 / 3),
    ],
)
def test_images_fill_whole_tiles(batch: int, channels: int, factor: float) -> None:
    dims = {"batch": batch, "height": 8, "width": 8, "n.channels": channels, "embed": 3}
    sizes = Sizes(dims | {"boxes": 5, "patches": 5, "heads": 2, "head_dim": 4}, {})
    assert sizes.lanes(("batch", "height", "width", "n.channels"), {}) == pytest.approx(factor)
    assert sizes.lanes(("batch", "height", "width", "embed"), {}) == 1
    assert sizes.lanes(("batch", "n.channels"), {}) == 1
    assert sizes.lanes(("batch", "boxes", "n.channels"), {}) == pytest.approx(factor)
    assert sizes.lanes(("batch", "patches", "n.channels"), {}) == 1
    assert sizes.lanes(("heads", "head_dim", "n.channels"), {}) == 1


def test_a_bias_is_summed_over_all_it_is_added_to() -> None:
    def net(w: GraphWriter, x: Tensor) -> Tensor:
        return pieces.biased(w, "first", x)

    graph = partitioned(net)
    assert [group.name for group in nodes(graph)["first"].epilogue] == ["first_biased"]
    made = [node for node in graph.nodes if "d(first_bias)" in node.writes]
    assert len(made) == 1
    assert any(node.name == "all-reduce/d(first_bias)@data" for node in graph.nodes)


def test_a_reshape_moves_nothing_where_the_first_dimension_keeps_its_axes() -> None:
    def net(w: GraphWriter, x: Tensor) -> Tensor:
        w.sizes["n.patches"] = 32 * 32
        y = w.reshape("tokens", x, (x.dims[0], "n.patches", x.dims[-1]))
        return w.reshape("pixels", y, x.dims)

    graph = partitioned(net)
    assert not {"tokens", "pixels"} & set(nodes(graph))
    pooled = nodes(graph)["pooled"]
    assert pooled.reads == ("first_out",)


def test_a_single_tap_is_a_convolution_of_pixels_and_channels() -> None:
    """What is fused to it runs beside the array, unlike what is fused to a matmul."""

    def net(w: GraphWriter, x: Tensor) -> Tensor:
        y = pieces.convolution(w, "one", x, 32, (1, 1))
        return pieces.convolution(w, "strided", y, 32, (1, 1), stride=2)

    graph = partitioned(net)
    sizes = Sizes(dict(step_of(net).sizes), {"data": 4})
    works = {name: work_of(node, sizes, graph.buffers) for name, node in nodes(graph).items()}
    shapes = {
        name: (work.taps, work.batch * work.positions, work.in_channels, work.out_channels)
        for name, work in works.items()
        if isinstance(work, ConvolutionWork) and name.startswith("one")
    }
    pixels = 4 * 32 * 32
    assert shapes == {
        "one": (1, pixels, 64, 32),
        "one/dx": (1, pixels, 64, 32),
        "one/dw": (1, pixels, 64, 32),
    }
    assert not any(isinstance(works[name], MatmulWork) for name in shapes)


def test_fused_groups_convert_what_enters_and_leaves_once() -> None:
    """Of the mask and the sums in a gradient's epilogue, 14 operations an element.

    The norm and the rectifier again (3 + 1), with the conversion of what was normalised (1); the
    mask (2) and the conversion of the gradient that is written (1); and the sums (6).
    """
    graph = partitioned(one_reader)
    sizes = Sizes(dict(step_of(one_reader).sizes), {"data": 4})
    work = work_of(nodes(graph)["second/dx"], sizes, graph.buffers)
    assert isinstance(work, ConvolutionWork)
    elements = 4 * 32 * 32 * 64 * 2
    assert work.epilogue_flops / elements == pytest.approx(14, abs=0.01)


def test_what_repeats_the_result_of_a_matmul_is_no_epilogue_of_it() -> None:
    """A bias that a matmul makes for each example, added to all of its positions."""

    def net(w: GraphWriter, x: Tensor) -> Tensor:
        made = convolved(w, "second", x)
        w.size(time=4)
        given = w.input("time", ("batch", "time"), "compute")
        return w.add("timed", made, w.dense("shift", given, made.dims[-1]))

    found = nodes(partitioned(net))
    assert found["shift"].epilogue == ()
    assert found["timed"].reads == ("second_out", "shift_out")
