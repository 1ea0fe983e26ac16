"""BERT: an encoder that is trained to predict masked tokens, and whether two texts follow."""

from dataclasses import dataclass
from typing import ClassVar

from tpusim.base.errors import ModelError, PlanError, blame
from tpusim.graph import COMPUTE, GraphWriter, Tensor
from tpusim.models import pieces
from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.checks import check_heads, check_length, check_types, check_values
from tpusim.models.pieces import AttentionForm, EncoderForm

_CHOICES = {"attention": ("dot", "flash"), "softmax_dtype": (COMPUTE, "f32")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bert(Architecture):
    """An encoder with BERT's embeddings, layers and losses (Devlin et al., arXiv:1810.04805).

    Tokens, their positions and their segments have learnt embeddings. Norms are written before
    attention and MLP, and one after the last layer, where BERT has them after each, and one before
    the first layer: as many, of equal sizes. Dropout is not counted.

    name: the model's name, as results print it.
    layers: layers of attention and MLP.
    embed: width of the residual stream.
    mlp: width of the MLP.
    heads: heads of `embed / heads`.
    vocab: tokens of the vocabulary.
    positions: rows of the table of positions, the most tokens of a sequence.
    segments: texts of a sequence.
    predictions: positions of a sequence that are predicted (`max_predictions_per_seq`); 0 for all.
    next_sentence: whether the second text follows the first is predicted too, from the first token.
    attention: `dot` writes the scores to HBM, `flash` is a fused kernel.
    softmax_dtype: of the scores, where attention is `dot`.
    """

    PUBLISHED: ClassVar[str] = "bert.toml"
    name: str = "bert"
    layers: int
    embed: int
    mlp: int
    heads: int
    vocab: int = 30522
    positions: int = 512
    segments: int = 2
    predictions: int = 0
    next_sentence: bool = True
    attention: str = "dot"
    softmax_dtype: str = COMPUTE

    def __post_init__(self) -> None:
        with blame(self.name):
            check_types(self)
            check_values(self, _CHOICES)
            check_heads(self.embed, self.heads)
            if self.predictions > self.positions:
                raise ModelError(
                    f"predictions is {self.predictions}, but a sequence has at most "
                    f"{self.positions} positions; write predictions = {self.positions} or less"
                )

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the loss of each example.

        Raise PlanError for sequences that are longer than the table of positions.
        """
        self._declare(w)
        ids = w.input("ids", ("batch", "seq"))
        x, table = pieces.embedding(w, ids)
        x = pieces.first_positions(w, x, "positions")
        x = pieces.segmented(w, x, w.input("segment_ids", ids.dims), "segments")
        x = pieces.encoder(w, x, self.layers, self._form())
        x = pieces.layer_norm(w, "final_norm", x)
        told, labels = x, w.input("labels", ids.dims)
        if self.predictions:
            dims = ("batch", "predictions")
            told = pieces.chosen_positions(w, x, w.input("predicted_positions", dims))
            labels = w.input("labels", dims)
        loss = pieces.masked_language_model_loss(
            w, told, labels, table, form=choices.loss, dtype=choices.logits_dtype
        )
        return w.add("step_loss", loss, self._next(w, x)) if self.next_sentence else loss

    def _next(self, w: GraphWriter, x: Tensor) -> Tensor:
        """Write whether the second text follows; return the loss of each example."""
        own = w.scope("next_sentence")
        first = pieces.position(own, "first_token", x)
        return pieces.classification_loss(own, pieces.representation(own, first), 2)

    def _declare(self, w: GraphWriter) -> None:
        length = check_length(w, self.name, self.positions)
        if 1 < length < self.predictions:  # one token stands for any where weights are counted
            raise PlanError(
                f"{self.name}: predictions is {self.predictions}, but plan.seq_len is {length}; "
                f"write predictions = {length} or less"
            )
        w.size(
            embed=self.embed,
            heads=self.heads,
            head_dim=self.embed // self.heads,
            mlp=self.mlp,
            vocab=self.vocab,
            positions=self.positions,
            segments=self.segments,
        )
        if self.predictions:
            w.size(predictions=self.predictions)

    def _form(self) -> EncoderForm:
        attention = AttentionForm(
            fused=self.attention == "flash",
            softmax_dtype=self.softmax_dtype,
            bias=True,
            out_bias=True,
        )
        return EncoderForm(attention=attention)
