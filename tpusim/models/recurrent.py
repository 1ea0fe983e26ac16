"""GNMT: a recurrent encoder and decoder with attention, as MLPerf trained it.

The layers are LSTMs. Each is a scan over the tokens of a sequence, whose steps share weights; the
products with its input are one matmul for all steps before it.
"""

from dataclasses import dataclass

from tpusim.base.errors import blame
from tpusim.graph import GraphWriter, Pointwise, Tensor, function
from tpusim.models import pieces
from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.checks import check_types, check_values

LSTM_FLOPS = 11.0
SCORE_FLOPS = 12.0
"""Vector operations per element: of the four gates, a logistic function or tanh, and a quarter of
the state's; of a score, a sum of three, tanh, a product and a sum. Assumed: counted from the
formulas, as `pieces.ACTIVATION_FLOPS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gnmt(Architecture):
    """The dimensions of GNMT (Wu et al., arXiv:1609.08144), by default those of MLPerf's.

    The encoder's first layer reads in both directions, and the decoder's first one attends to the
    encoder's result after each token; its context is an input of the other layers (mlcommons/
    training, rnn_translator; training_results_v0.7, Google/benchmarks/gnmt). Layers from the third
    on have residual connections. The context of a token is also an input of the attending layer at
    the next one, which the reference leaves out: it has 160 million weights, 4 million less. The
    source has the plan's `seq_len`; dropout is not counted.

    name: the model's name, as results print it.
    layers: layers of the encoder, of which the first counts once.
    decoder_layers: layers of the decoder.
    units: width of the layers and of the embeddings.
    vocab: tokens of each of the two vocabularies.
    shared_embedding: both have one table of embeddings.
    target_len: tokens of the target; 0 for as many as the source has.
    weights_after: the gradient of a layer's weight is one matmul for all steps, after the backward
        scan, as MLPerf's custom gradient has it; otherwise each step adds to it, as JAX does.
    """

    name: str = "gnmt"
    layers: int = 4
    decoder_layers: int = 4
    units: int = 1024
    vocab: int = 32320
    shared_embedding: bool = True
    target_len: int = 0
    weights_after: bool = True

    def __post_init__(self) -> None:
        with blame(self.name):
            check_types(self)
            check_values(self, {})

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        """Write the forward pass, and return the loss of each token of the target."""
        w.size(
            target_seq=self.target_len or w.extent("seq"),
            embed=self.units,
            gate=4,
            vocab=self.vocab,
        )
        encoder, decoder = w.marked("encoder_"), w.marked("decoder_")
        x, table = pieces.embedding(encoder, w.input("ids", ("batch", "seq")))
        memory = self._encoder(encoder, x)
        ids = w.input("target_ids", ("batch", "target_seq"))
        y, _ = pieces.embedding(decoder, ids, table if self.shared_embedding else None)
        y = self._decoder(decoder, y, memory)
        return pieces.language_model_loss(w, y, ids, form=choices.loss, dtype=choices.logits_dtype)

    def _encoder(self, w: GraphWriter, x: Tensor) -> Tensor:
        both = [self._layer(w, f"0_{way}", x) for way in ("forward", "backward")]
        x = self._layer(w, "1", *both) if self.layers > 1 else w.add("both", *both)
        for layer in range(2, self.layers):
            x = w.add(f"{layer}_sum", x, self._layer(w, str(layer), x))
        return x

    def _decoder(self, w: GraphWriter, y: Tensor, memory: Tensor) -> Tensor:
        y, context = self._attending(w, y, memory)
        for layer in range(1, self.decoder_layers):
            made = self._layer(w, str(layer), y, context)
            y = w.add(f"{layer}_sum", y, made) if layer > 1 else made
        return y

    def _layer(self, w: GraphWriter, name: str, *inputs: Tensor) -> Tensor:
        """Write an LSTM over all tokens of its inputs, which are concatenated; return its states.

        The inputs have a weight each, which is the same as one of their concatenation.
        """

        def step(w: GraphWriter, part: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            state, cell = states
            products = w.dense("wh", state, "gate", "embed")
            return _cell(w, w.add("gates", part, products), cell)

        (made,) = w.recurrence(
            name,
            _products(w, name, inputs),
            ("h", "c"),
            ("embed",),
            step,
            emitted=("h",),
            weights_after=self.weights_after,
        )
        return made

    def _attending(self, w: GraphWriter, y: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Write the LSTM that attends to the encoder's result; return its states and contexts.

        The attention is additive (Bahdanau et al., arXiv:1409.0473, appendix A.1.2).
        """
        keys = w.dense("keys", memory, "embed")

        def step(w: GraphWriter, part: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            state, cell, context = states
            gates = w.add(
                "gates",
                part,
                w.dense("wh", state, "gate", "embed"),
                w.dense("wa", context, "gate", "embed"),
            )
            state, cell = _cell(w, gates, cell)
            query = w.dense("query", state, "embed")
            given = (keys, query, w.weight("v", "embed"))
            where = ("batch", "seq")
            score = function("additive_scores")
            scores = w.pointwise("scores", given, where, SCORE_FLOPS, function=score)
            probs = w.pointwise(
                "softmax",
                (scores,),
                w.tensor("probs", where),
                pieces.SOFTMAX_FLOPS,
                over=("seq",),
                keeps="outputs",
                function=function("plain_softmax"),
            )
            mean = function("attended_values")
            made = w.pointwise("context", (probs, memory), cell.dims, 2.0, function=mean)
            return state, cell, made

        states, contexts = w.recurrence(
            "0",
            _products(w, "0", (y,)),
            ("h", "c", "context"),
            ("embed",),
            step,
            emitted=("h", "context"),
            weights_after=self.weights_after,
        )
        return states, contexts


def _products(w: GraphWriter, name: str, inputs: tuple[Tensor, ...]) -> Tensor:
    """Write the products of all tokens of the inputs with their weights; return their sum."""
    terms = [w.dense(f"{name}_wx{n}", x, "gate", "embed") for n, x in enumerate(inputs)]
    return terms[0] if len(terms) == 1 else w.add(f"{name}_wx", *terms)


def _cell(w: GraphWriter, gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Write an LSTM's state and cell after a step; gates are [batch, gate, embed]."""
    made = w.tensor("h", cell.dims), w.tensor("c", cell.dims)
    name = f"{w.prefix}lstm"
    w.write(Pointwise(name, (gates, cell), made, LSTM_FLOPS, function=function("lstm_cell")))
    return made
