"""MetNet-2, a forecast of precipitation (arXiv:2111.07470).

As recalled, and not checked against the paper: the context of 2048 km on 512 x 512 positions, a
convolutional LSTM over slices of time, residual blocks with dilations from 1 to 128 on 384 channels
that are conditioned on the lead time, the target of 512 km at 1 km, and 512 categories of rain.
Assumed: the channels of an input, the positions after the encoder (a quarter in each direction),
one residual block for each dilation in each of three stacks, and doublings by transposed
convolutions of 512 channels.
"""

from dataclasses import dataclass
from typing import ClassVar

from tpusim.base.errors import ModelError
from tpusim.graph import GraphWriter, Tensor, function
from tpusim.models import pieces
from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.checks import check_types, check_values

GATE_FLOPS = 40.0
"""Vector operations per element of a gate of an LSTM; transcendental functions at eight each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetNet2(Architecture):
    """An encoder of slices of time, an aggregator of the context, and an upsampled target.

    name: the model's name, as results print it.
    context: positions of a side of the input, of 4 km each.
    in_channels: of a slice.
    slices: of time.
    hidden: channels of the LSTM and of the residual blocks.
    dilations: of the blocks of a stack.
    stacks: of blocks.
    target: positions of a side of the forecast, of 1 km each.
    up_channels: while positions are doubled.
    categories: of rain.
    """

    reads_text: ClassVar[bool] = False
    name: str = "metnet-2"
    context: int = 512
    in_channels: int = 64
    slices: int = 13
    hidden: int = 384
    dilations: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    stacks: int = 3
    target: int = 512
    up_channels: int = 512
    categories: int = 512

    def __post_init__(self) -> None:
        check_types(self)
        check_values(self, {})
        known = tuple(self.context * times for times in (1, 2, 4))
        if self.context % 16 or self.target not in known:
            raise ModelError(
                f"{self.name}: context is {self.context} and target {self.target}; write a "
                f"multiple of 16 for the context, and one, two or four times it for the target"
            )

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the loss of each example."""
        w.size(lead=32)
        lead = w.input("lead", ("batch", "lead"), "compute")
        x = self._aggregated(w, self._encoded(w), lead)
        return self._head(w, x)

    def _encoded(self, w: GraphWriter) -> Tensor:
        """Write a small encoder of each slice and the LSTM over them, with the same weights."""
        state: tuple[Tensor, Tensor] | None = None
        for place in range(self.slices):
            inner = w.scope(f"slice{place}")
            side = self.context
            x = pieces.images(inner, "input", self.in_channels, height=side, width=side)
            for number, count in enumerate((160, 256)):
                name = f"encode{number}"
                x = pieces.convolution(inner, name, x, count, (3, 3), kernel=f"encoder/{number}")
                x = pieces.relu(inner, f"{name}_relu", pieces.pool(inner, f"{name}_pool", x, 2, 2))
            state = self._lstm(inner, x, state)
        assert state is not None
        return state[1]

    def _lstm(
        self, w: GraphWriter, x: Tensor, state: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """Write a step of the LSTM; return its cell and its result."""
        width = 4 * self.hidden
        gates = pieces.convolution(w, "gates", x, width, (3, 3), kernel="lstm/gates")
        own = pieces.channels(w, self.hidden)
        made = (*gates.dims[:-1], own)
        given: tuple[Tensor, ...] = (gates,)
        if state is not None:
            before = pieces.convolution(
                w, "gates_of_state", state[1], width, (3, 3), kernel="lstm/gates_of_state"
            )
            given = (w.add("all_gates", gates, before.view(gates.dims)), state[0].view(made))
        of = function("cell_of_positions"), function("state_of_positions")
        cell = w.pointwise("cell", given, made, GATE_FLOPS, function=of[0])
        return cell, w.pointwise("state", (given[0], cell), made, GATE_FLOPS, function=of[1])

    def _aggregated(self, w: GraphWriter, x: Tensor, lead: Tensor) -> Tensor:
        """Write the residual blocks, whose dilations reach over the whole context."""
        for stack in range(self.stacks):
            for dilation in self.dilations:
                inner, y = w.scope(f"stack{stack}.{dilation}"), x
                for part in ("a", "b"):
                    y = pieces.convolution(inner, part, y, self.hidden, (3, 3), dilation=dilation)
                    y = self._conditioned(inner.scope(part), y, lead)
                x = inner.add("out", x, y.view(x.dims))
        return x

    def _conditioned(self, w: GraphWriter, x: Tensor, lead: Tensor) -> Tensor:
        """Write a norm, its scale and shift by the lead time, and a rectifier."""
        normed = pieces.layer_norm(w, "norm", x, x.dims[-1])
        scale, shift = (pieces.linear(w, name, lead, x.dims[-1]) for name in ("scale", "shift"))
        of = function("film")
        made = w.pointwise("film", (normed, scale, shift), x.dims, 2.0, function=of)
        return pieces.relu(w, "relu", made)

    def _head(self, w: GraphWriter, x: Tensor) -> Tensor:
        """Write the crop to the target's area, its positions at 1 km, and the loss."""
        share = self.context * 4 // self.target
        kept = tuple(pieces.resized(w, dim, w.sizes[dim] // share) for dim in x.dims[1:-1])
        pairs = tuple(zip(kept, x.dims[1:-1], strict=True))
        dims = (x.dims[0], *kept, x.dims[-1])
        of = function("centre", height=kept[0], width=kept[1])
        x = w.pointwise("crop", (x,), dims, 0.0, keeps="", repeats=pairs, alone=True, function=of)
        doublings = (self.target // w.sizes[kept[0]]).bit_length() - 1
        for number in range(doublings):
            name = f"double{number}"
            x = pieces.convolution(w, name, x, self.up_channels, (2, 2), up=2)
            x = pieces.relu(w, f"{name}_relu", pieces.biased(w, name, x))
        x = pieces.biased(w, "head", pieces.convolution(w, "head", x, self.categories, (1, 1)))
        w.output("logits", x)
        labels = w.input("rain", x.dims[:-1])
        return w.pointwise(
            "loss",
            (x, labels),
            w.tensor("loss", ("batch",), "f32"),
            pieces.SOFTMAX_FLOPS,
            over=x.dims[-1:],
            function=function("cross_entropy"),
        )
