"""Convolution nets as graphs, for tests: images over height and width, written layer by layer."""

from dataclasses import dataclass, field
from math import prod

from plans import lowered
from steps import partitioned_graph

from tpusim.graph import (
    ADD,
    Convolution,
    ConvolutionWindow,
    Function,
    Graph,
    Op,
    Padding,
    Pointwise,
    Pool,
    Remat,
    Tensor,
    TensorRole,
    function,
    part_of,
    training_step,
)
from tpusim.hardware import Slice, placements
from tpusim.partition import PartitionedGraph, Sizes
from tpusim.plan import Plan
from tpusim.program import Program

SPATIAL = ("height", "width", "depth")


@dataclass
class ConvNet:
    """A net of which each method adds a layer to the last tensor, `x`."""

    batch: int
    channels: int
    space: tuple[int, ...]
    ops: list[Op] = field(default_factory=list)
    dims: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        spatial = SPATIAL[: len(self.space)]
        self.dims = {
            "batch": self.batch,
            "c0": self.channels,
            **dict(zip(spatial, self.space, strict=True)),
        }
        self.x = Tensor("image", ("batch", *spatial, "c0"), TensorRole.INPUT)

    @property
    def space_dims(self) -> tuple[str, ...]:
        return self.x.dims[1:-1]

    def windows(
        self, name: str, taps: int, stride: int, dilation: int, up: int, padding: Padding
    ) -> tuple[ConvolutionWindow, ...]:
        """Windows over all spatial dimensions, whose outputs and taps get sizes."""
        made = []
        for dim in self.space_dims:
            base = dim.partition("/")[0]
            out, tap = f"{base}/{name[4:]}", f"taps/{name[4:]}.{base}"
            window = ConvolutionWindow(dim, out, tap, stride, dilation, up, padding)
            self.dims[tap] = taps
            self.dims[out] = window.output_size(self.dims[dim], taps)
            made.append(window)
        return tuple(made)

    def conv(
        self, channels: int, taps: int = 3, stride: int = 1, dilation: int = 1, up: int = 1,
        padding: Padding = "same", groups: int = 1, depthwise: bool = False, act: bool = True,
    ) -> Tensor:  # fmt: skip
        name = f"net/l{len(self.ops)}"
        windows = self.windows(name, taps, stride, dilation, up, padding)
        inside = self.x.dims[-1]
        within = part_of(inside, groups)
        outside = inside if depthwise else f"c{len(self.ops) + 1}"
        self.dims |= {within: self.dims[inside] // groups}
        if not depthwise:
            self.dims[outside] = channels
        middle = () if depthwise else (within,)
        dims = (*(w.tap_dim for w in windows), *middle, outside)
        kernel = Tensor(f"{name}/kernel", dims, TensorRole.PARAM)
        made = Tensor(f"{name}/y", ("batch", *(w.out_dim for w in windows), outside))
        self.ops.append(Convolution(name, self.x, kernel, made, windows, groups))
        self.x = made
        return self.relu() if act else made

    def relu(self) -> Tensor:
        name = f"net/l{len(self.ops)}"
        made = Tensor(f"{name}/relu", self.x.dims)
        self.ops.append(
            Pointwise(name, (self.x,), (made,), 1.0, keeps="outputs", function=Function("relu"))
        )
        self.x = made
        return made

    def norm(self) -> Tensor:
        """A batch norm, over all devices."""
        name, channels = f"net/l{len(self.ops)}", self.x.dims[-1]
        scale, bias = (
            Tensor(f"{name}/{kind}", (channels,), TensorRole.PARAM, dtype="f32")
            for kind in ("scale", "bias")
        )
        made = Tensor(f"{name}/norm", self.x.dims)
        self.ops.append(
            Pointwise(
                name,
                (self.x, scale, bias),
                (made,),
                8.0,
                over=self.x.dims[:-1],
                statistics=2,
                function=function("standardise", over=len(self.x.dims) - 1),
            )
        )
        self.x = made
        return made

    def add(self, other: Tensor) -> Tensor:
        name = f"net/l{len(self.ops)}"
        made = Tensor(f"{name}/sum", self.x.dims)
        terms = (other.view(self.x.dims), self.x)
        self.ops.append(Pointwise(name, terms, (made,), 1.0, linear=True, keeps="", function=ADD))
        self.x = made
        return made

    def pool(
        self, taps: int = 2, stride: int = 2, maximum: bool = True, padding: Padding = "same"
    ) -> Tensor:
        name = f"net/l{len(self.ops)}"
        windows = self.windows(name, taps, stride, 1, 1, padding)
        dims = ("batch", *(w.out_dim for w in windows), self.x.dims[-1])
        made = Tensor(f"{name}/pool", dims)
        self.ops.append(Pool(name, self.x, made, windows, maximum))
        self.x = made
        return made

    def upsample(self, factor: int = 2) -> Tensor:
        name, old = f"net/l{len(self.ops)}", self.space_dims
        new = tuple(f"{dim.partition('/')[0]}/{name[4:]}" for dim in old)
        self.dims |= {wide: factor * self.dims[dim] for dim, wide in zip(old, new, strict=True)}
        made = Tensor(f"{name}/up", ("batch", *new, self.x.dims[-1]))
        self.ops.append(
            Pointwise(
                name,
                (self.x,),
                (made,),
                1.0,
                keeps="",
                alone=True,
                repeats=tuple(zip(old, new, strict=True)),
                function=Function("repeat"),
            )
        )
        self.x = made
        return made

    def graph(self) -> Graph:
        """The net with the mean of the squares of its last tensor as its loss."""
        loss = Tensor("loss", ("batch",), dtype="f32")
        whole = function("mean_square")
        ops = (*self.ops, Pointwise("loss", (self.x,), (loss,), 2.0, function=whole))
        return Graph("conv_net", tuple(self.dims.items()), ops, (("loss", loss),))

    def step(self) -> Graph:
        return training_step(self.graph(), Remat("none"))


def conv_plan(mesh: dict[str, int], batch: int, **rules: str) -> Plan:
    """A plan that shards the batch over `data` and dimensions as `rules` says."""
    given = {f"act_{dim}": axis for dim, axis in rules.items()}
    return Plan(mesh=mesh, seq_len=1, global_batch=batch, rules=given)


def partitioned(net: ConvNet, plan: Plan) -> PartitionedGraph:
    return partitioned_graph(net.step(), plan)


def sizes(net: ConvNet, plan: Plan) -> Sizes:
    return Sizes(net.step().sizes, plan.active_axes, plan.dtypes.compute, plan.dtypes.param)


def conv_program(net: ConvNet, plan: Plan, pod: str = "v5e:4x4") -> Program:
    chip, _, shape = pod.partition(":")
    slice_ = Slice(chip, shape)
    graph = net.step()
    placement = placements(slice_, plan.mesh)[0]
    return lowered(graph, partitioned_graph(graph, plan), plan, slice_, placement)


def elements(net: ConvNet, tensor: Tensor) -> int:
    return prod(net.dims[dim] for dim in tensor.dims)
