"""MetNet-2, a forecast of precipitation (arXiv:2111.07470; Nature Communications 13, 5145).

Slices of time of the context of 2048 km, at 4 km a position, go through a convolutional LSTM; three
stacks of residual blocks with dilations from 1 to 128, in all of which two convolutions are each
followed by a norm, which the lead time shifts and scales, and a rectifier, reach over the whole of
it. Its centre of 512 km is doubled twice, to 1 km, and goes through a shallow network of blocks and
two 1x1 convolutions to the 512 categories of rain. The numbers of channels are those of the figure
of the architecture, as openclimatefix/metnet (`models/metnet2.py`) reads it; with all of them the
weights are 225 million, which is the published number.

Assumed: the channels of a slice (641, of radar, satellite, the analysis and positions), transposed
convolutions of 2x2 taps, and a scale and a shift of their own for each convolution of a block: with
one of each a block there were 170 million weights.
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
    """An LSTM of slices of time, an aggregator of the context, and an upsampled target.

    name: the model's name, as results print it.
    context: positions of a side of the input, of 4 km each.
    in_channels: of a slice.
    slices: of time.
    lstm: channels of the LSTM.
    hidden: channels of the residual blocks of the context.
    dilations: of the blocks of a stack.
    stacks: of blocks.
    target: positions of a side of the forecast, of 1 km each.
    up_channels: while positions are doubled, and of the blocks after that.
    up_blocks: residual blocks at the target's positions.
    head: channels before the categories.
    categories: of rain.
    leads: lead times, of two minutes each.
    lead_features: width of the embedding of a lead time.
    """

    reads_text: ClassVar[bool] = False
    name: str = "metnet-2"
    context: int = 512
    in_channels: int = 641
    slices: int = 13
    lstm: int = 128
    hidden: int = 384
    dilations: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    stacks: int = 3
    target: int = 512
    up_channels: int = 512
    up_blocks: int = 8
    head: int = 4096
    categories: int = 512
    leads: int = 360
    lead_features: int = 2048

    def __post_init__(self) -> None:
        check_types(self)
        check_values(self, {})
        known = tuple(self.context * times for times in (1, 2, 4))
        if self.context % 4 or self.target not in known:
            raise ModelError(
                f"{self.name}: context is {self.context} and target {self.target}; write a "
                f"multiple of 4 for the context, and one, two or four times it for the target"
            )

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the loss of each example."""
        lead = self._lead(w)
        x = self._encoded(w)
        for stack in range(self.stacks):
            for dilation in self.dilations:
                inner = w.scope(f"stack{stack}.{dilation}")
                x = self._block(inner, x, lead, self.hidden, dilation)
        x = self._doubled(w, self._centre(w, x))
        for number in range(self.up_blocks):
            x = self._block(w.scope(f"up{number}"), x, lead, self.up_channels)
        return self._loss(w, x)

    def _lead(self, w: GraphWriter) -> Tensor:
        """Write the embedding of the lead time, [batch, lead], whose number is a one-hot vector."""
        w.size(leads=self.leads, lead=self.lead_features)
        x = w.input("lead", ("batch", "leads"), "compute")
        x = pieces.relu(w, "lead_relu", pieces.linear(w, "lead_0", x, "lead"))
        return pieces.linear(w, "lead_1", x, "lead")

    def _encoded(self, w: GraphWriter) -> Tensor:
        """Write the LSTM over all slices, with the same weights."""
        state: tuple[Tensor, Tensor] | None = None
        side = self.context
        for place in range(self.slices):
            inner = w.scope(f"slice{place}")
            x = pieces.images(inner, "input", self.in_channels, height=side, width=side)
            state = self._lstm(inner, x, state)
        assert state is not None
        return state[1]

    def _lstm(
        self, w: GraphWriter, x: Tensor, state: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """Write a step of the LSTM; return its cell and its result."""
        width = 4 * self.lstm
        gates = pieces.convolution(w, "gates", x, width, (3, 3), kernel="lstm/gates")
        own = pieces.channels(w, self.lstm)
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

    def _block(
        self, w: GraphWriter, x: Tensor, lead: Tensor, width: int, dilation: int = 1
    ) -> Tensor:
        """Write a residual block of `width` channels; other channels are brought to as many."""
        y, kept = x, x
        for part in ("a", "b"):
            y = pieces.convolution(w, part, y, width, (3, 3), dilation=dilation)
            y = self._conditioned(w.scope(part), y, lead)
        if w.sizes[x.dims[-1]] != width:
            kept = pieces.convolution(w, "shortcut", x, width, (1, 1))
        return w.add("out", kept, y.view(kept.dims))

    def _conditioned(self, w: GraphWriter, x: Tensor, lead: Tensor) -> Tensor:
        """Write a norm, shifted and scaled by the lead time, and a rectifier."""
        rows = pieces.linear(w, "lead", lead, pieces.channels(w, 2 * w.sizes[x.dims[-1]]))
        return pieces.relu(w, "relu", pieces.modulated_norm(w, "norm", x, rows, 0))

    def _centre(self, w: GraphWriter, x: Tensor) -> Tensor:
        """Write the crop to the target's area."""
        share = self.context * 4 // self.target
        kept = tuple(pieces.resized(w, dim, w.sizes[dim] // share) for dim in x.dims[1:-1])
        pairs = tuple(zip(kept, x.dims[1:-1], strict=True))
        dims = (x.dims[0], *kept, x.dims[-1])
        of = function("centre", height=kept[0], width=kept[1])
        return w.pointwise(
            "crop", (x,), dims, 0.0, keeps="", repeats=pairs, alone=True, function=of
        )

    def _doubled(self, w: GraphWriter, x: Tensor) -> Tensor:
        """Write the doublings of positions to those of the target."""
        doublings = (self.target // w.sizes[x.dims[1]]).bit_length() - 1
        for number in range(doublings):
            name = f"double{number}"
            x = pieces.convolution(w, name, x, self.up_channels, (2, 2), up=2)
            x = pieces.relu(w, f"{name}_relu", pieces.biased(w, name, x))
        return x

    def _loss(self, w: GraphWriter, x: Tensor) -> Tensor:
        """Write the head and the loss of each example."""
        x = pieces.biased(w, "hidden", pieces.convolution(w, "hidden", x, self.head, (1, 1)))
        x = pieces.relu(w, "hidden_relu", x)
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
