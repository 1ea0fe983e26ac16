"""Encoder-decoder transformers: T5, the translation transformers, and those with experts.

The decoder's layers attend to the encoder's result, which they share: its gradient is added up
over them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from tpusim.base.errors import ModelError, blame
from tpusim.graph import GraphWriter, Tensor
from tpusim.models import pieces
from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.checks import check_heads, check_types, check_values
from tpusim.models.layer_patterns import Layer, in_turn
from tpusim.models.pieces import ACTIVATION_FLOPS, AttentionForm, MoE
from tpusim.models.self_attention import SelfAttention

_CHOICES = {"activation": tuple(ACTIVATION_FLOPS)}

_TARGET = "target"
"""The part whose dimensions the decoder has beside the encoder's: its vocabulary and slots."""

_T5 = SelfAttention(kernel="dot", rotary=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderDecoder(Architecture):
    """The dimensions of an encoder-decoder transformer.

    A layer of the encoder has self-attention and an MLP; one of the decoder has causal
    self-attention, attention to the encoder's result, and an MLP. The source has the plan's
    `seq_len`. Biases of attention that depend on relative positions (T5: 32 numbers a head) are
    added to the scores where the softmax reads them, and are not counted.

    name: the model's name, as results print it.
    layers: layers of the encoder.
    decoder_layers: layers of the decoder; 0 for as many as the encoder has.
    embed: width of the residual stream.
    mlp: width of the MLP.
    heads: heads of each attention.
    head_dim: width of a head; embed / heads where it is not given.
    vocab: tokens of the source's vocabulary.
    target_vocab: tokens of the target's, with an embedding of its own; 0 if it is the source's.
    target_len: tokens of the target; 0 for as many as the source has.
    gated: the MLP has two input matrices, whose results are multiplied.
    activation: `relu`, `gelu` or `silu`.
    tied_embeddings: the head is the target's table of embeddings.
    attention: the kind of all attention; windows are of self-attention alone.
    moe: the experts of the layers, counted in the encoder and in the decoder from their first.
    """

    PUBLISHED: ClassVar[str] = "encoder_decoder.toml"
    name: str = "encoder-decoder"
    layers: int
    decoder_layers: int = 0
    embed: int
    mlp: int
    heads: int
    head_dim: int = 0
    vocab: int
    target_vocab: int = 0
    target_len: int = 0
    gated: bool = False
    activation: str = "relu"
    tied_embeddings: bool = True
    attention: SelfAttention = _T5
    moe: MoE = field(default_factory=MoE)

    def __post_init__(self) -> None:
        with blame(self.name):
            check_types(self)
            if not self.head_dim:
                check_heads(self.embed, self.heads, instead="give head_dim")
                object.__setattr__(self, "head_dim", self.embed // self.heads)
            check_values(self, _CHOICES)
            if self.attention.kernel == "none":
                raise ModelError(
                    "attention.kernel is 'none', but a decoder reads its encoder by attention; "
                    "write 'dot' or 'flash'"
                )
            if self.attention.global_every or self.attention.window:
                raise ModelError(
                    f"attention.window is {self.attention.window}, but attention of "
                    "encoder-decoders sees all keys; write window = 0"
                )
            if self.attention.linear or self.attention.out_gate:
                key = "linear" if self.attention.linear else "out_gate"
                raise ModelError(
                    f"attention.{key} is {getattr(self.attention, key)!r}, but encoder-decoders "
                    "have plain attention; leave it out"
                )
            if self.moe.dense_layers:
                raise ModelError(
                    f"moe.dense_layers is {self.moe.dense_layers}, but the layers of "
                    "encoder-decoders follow one pattern; write dense_layers = 0"
                )
            self.moe.check_layers(min(self.layers, self.decoder_layers or self.layers))

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the loss of each token of the target."""
        target = self._declare(w)
        source_ids = w.input("ids", ("batch", "seq"))
        x, table = pieces.embedding(w, source_ids)
        memory = self._stack(w, "encoder", self.layers, x, choices)
        ids = w.input("target_ids", ("batch", "target_seq"))
        own = None if self.target_vocab else table
        y, table = pieces.embedding(target.marked("target_"), ids, own)
        y = self._stack(target, "decoder", self.decoder_layers or self.layers, y, choices, memory)
        return pieces.language_model_loss(
            target,
            y,
            ids,
            table=table if self.tied_embeddings else None,
            form=choices.loss,
            dtype=choices.logits_dtype,
        )

    def _declare(self, w: GraphWriter) -> GraphWriter:
        """Declare the dimensions; return the writer of the decoder, which has some of its own."""
        w.size(
            target_seq=self.target_len or w.extent("seq"),
            embed=self.embed,
            heads=self.heads,
            head_dim=self.head_dim,
            mlp=self.mlp,
            vocab=self.vocab,
            **self.moe.dims(self.mlp),
        )
        target = w.sized(_TARGET)
        if self.target_vocab:
            target.size(vocab=self.target_vocab)
        return target

    def _stack(
        self,
        w: GraphWriter,
        name: str,
        layers: int,
        x: Tensor,
        choices: GraphChoices,
        memory: Tensor | None = None,
    ) -> Tensor:
        """Write the layers of the encoder, or of the decoder of `memory`; return their result.

        It is normed. Scans are over whole patterns of layers, and one more over those left.
        """
        moe = self.moe
        patterns, left = divmod(layers, moe.expert_every if moe.experts else 1)
        period = (layers - left) // patterns if patterns else 0
        runs = (
            (name, patterns, range(period)),
            (f"last_{name}", min(left, 1), range(layers - left, layers)),
        )
        for scan, trips, numbers in runs:
            if trips:
                x = w.layers(
                    scan,
                    trips,
                    x,
                    _StackPattern(self, numbers, choices, memory).write,
                )
        return pieces.norm(w, f"{name}_norm", x)


@dataclass(frozen=True, slots=True)
class _StackPattern:
    """The layers of one iteration of a scan.

    numbers: of the layers, counted from 0.
    memory: the encoder's result, which layers of the decoder read.
    """

    model: EncoderDecoder
    numbers: Sequence[int]
    choices: GraphChoices
    memory: Tensor | None

    def write(self, w: GraphWriter, x: Tensor) -> Tensor:
        """Write the layers, and return the result of the last one."""
        layers: list[Layer] = [partial(self._layer, number=number) for number in self.numbers]
        return in_turn(w, x, layers)

    def _layer(self, w: GraphWriter, x: Tensor, out: Tensor, number: int) -> None:
        form = AttentionForm(
            fused=self.model.attention.kernel == "flash",
            rotary=self.model.attention.rotary,
            qk_norm=self.model.attention.qk_norm,
            softmax_dtype=self.model.attention.softmax_dtype,
        )
        own = replace(form, causal=self.memory is not None)
        mid = w.add("mid", x, pieces.attention(w, pieces.norm(w, "attn_norm", x), own))
        if self.memory is not None:
            cross = w.marked("cross_")
            queries = pieces.norm(cross, "norm", mid)
            seen = pieces.attention(cross, queries, form, memory=self.memory)
            mid = w.add("cross_mid", mid, seen)
        w.add("layer_out", mid, *self._terms(w, pieces.norm(w, "mlp_norm", mid), number), out=out)

    def _terms(self, w: GraphWriter, x: Tensor, number: int) -> tuple[Tensor, ...]:
        """Write the MLP or the experts of a layer, and return the terms that they add to it."""
        moe = self.model.moe
        kind: dict[str, Any] = {"activation": self.model.activation, "gated": self.model.gated}
        if not moe.has_experts(number):
            return (pieces.mlp(w, x, **kind),)
        shared = (pieces.mlp(w, x, prefix="shared_", **kind),) if moe.shared_mlp else ()
        return (pieces.experts(w, x, self.choices.routing, **kind), *shared)
