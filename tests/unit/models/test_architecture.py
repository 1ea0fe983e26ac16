"""Models of one's own: pieces, parts with dimensions of their own, and what a plan asks of them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from inputs import AttentionForm
from steps import checked_rules

import tpusim as ts
from tpusim.base import ModelError, PlanError, TpusimError
from tpusim.graph import GraphWriter, Tensor, is_sequence
from tpusim.models import Architecture, GraphChoices, Transformer, pieces

POD = ts.Slice("v5e", "4x4")


@dataclass(frozen=True, kw_only=True)
class Mine(Architecture):
    """A decoder of pieces, in as few lines as the page on own architectures has."""

    name: str = "mine"
    layers: int = 4
    vocab: int = 1024

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        w.size(embed=256, heads=4, head_dim=64, mlp=1024, vocab=self.vocab)
        ids = w.input("ids", ("batch", "seq"))
        x, _ = pieces.embedding(w, ids)
        x = w.layers("layer", self.layers, x, self.layer)
        x = pieces.norm(w, "final_norm", x)
        return pieces.language_model_loss(w, x, ids, dtype=choices.logits_dtype)

    def layer(self, w: GraphWriter, x: Tensor) -> Tensor:
        normed = pieces.norm(w, "attn_norm", x)
        mid = w.add("mid", x, pieces.attention(w, normed, AttentionForm(causal=True, rotary=True)))
        made = pieces.mlp(w, pieces.norm(w, "mlp_norm", mid), activation="silu", gated=True)
        return w.add("layer_out", mid, made)


SAME = Transformer(
    name="mine", layers=4, embed=256, mlp=1024, heads=4, head_dim=64, vocab=1024, qk_norm=False
)


def plan(**keys: object) -> ts.Plan:
    given = {"mesh": {"fsdp": 4, "tensor": 4}, "seq_len": 512, "global_batch": 16} | keys
    return ts.Plan(**given)


def test_pieces_make_the_transformer_that_the_dimensions_make() -> None:
    own, same = (model.graph(batch=4, seq_len=512) for model in (Mine(), SAME))
    assert (own.ops, own.loss) == (same.ops, same.loss)
    assert Mine().parameter_count == SAME.parameter_count
    assert ts.simulate(Mine(), plan(), POD).step_time_s == (
        ts.simulate(SAME, plan(), POD).step_time_s
    )


@pytest.mark.parametrize("exchange", ["gather", "ring", "all-to-all"])
def test_heads_alone_exchange_keys_as_equal_heads_of_keys(exchange: str) -> None:
    shared = plan(mesh={"fsdp": 4, "context": 4}, context_exchange=exchange)
    own, same = (ts.simulate(model, shared, POD) for model in (Mine(), SAME))
    assert own.step_time_s == same.step_time_s


def test_operations_and_results_have_names_of_their_own() -> None:
    w = GraphWriter("mine", {"batch": 2, "embed": 8})
    x = w.input("x", ("batch", "embed"), "compute")

    def layer(w: GraphWriter, x: Tensor) -> Tensor:
        return w.add("y", w.dense("wi", x, "embed"), w.dense("wi", x, "embed"))

    with pytest.raises(ModelError, match=r"mine writes layer/wi 2 times; write each in a scope"):
        w.graph(w.layers("layer", 2, x, layer))
    w = GraphWriter("mine", {"batch": 2, "embed": 8})
    made = w.add("made", w.dense("wi", x, "embed", out="made"), x)
    said = "mine: wi and made both make the tensor made; give the result of one of them another"
    with pytest.raises(ModelError, match=said):
        w.graph(made)


def test_text_needs_a_length() -> None:
    with pytest.raises(PlanError, match=r"seq_len is missing, and mine reads text; write the tok"):
        ts.simulate(Mine(), plan(seq_len=0), POD)


def test_a_dimension_has_one_size() -> None:
    w = GraphWriter("net", {"batch": 2})
    w.size(embed=8)
    with pytest.raises(ModelError, match="net has the dimension embed with sizes 8 and 9; give"):
        w.size(embed=9)
    with pytest.raises(ModelError, match="net has no dimension embd: did you mean 'embed'"):
        w.tensor("x", ("batch", "embd"))


def test_parts_have_dimensions_and_rules_of_their_own() -> None:
    w = GraphWriter("towers", {"batch": 16, "seq": 64})
    w.size(embed=128, mlp=512)
    image = w.part("image", embed=256, mlp=1024, patches=49)
    text = w.input("text", ("batch", "seq", "embed"), "compute")
    pixels = image.input("pixels", ("batch", "patches", "embed"), "compute")
    assert pixels.dims == ("batch", "image.patches", "image.embed")
    made = [pieces.mlp(each, x) for each, x in ((w, text), (image, pixels))]
    assert [t.name for t in made] == ["mlp_out", "image/mlp_out"]
    graph = w.graph(made[0])
    apart = plan(rules={"image.mlp": [], "image.act_mlp": []})
    rules = checked_rules(apart, graph)
    weights = {p.tensor.name: rules.layout(p.tensor) for p in graph.parameters}
    assert weights["wi"] == (("fsdp",), ("tensor",))
    assert weights["image/wi"] == (("fsdp",), ())
    same = checked_rules(plan(), graph)
    assert same.layout(graph.parameters[2].tensor) == (("fsdp",), ("tensor",))
    with pytest.raises(PlanError, match=r"plan\.rules\.image\.mpl names no dimension.*image\.mlp"):
        checked_rules(plan(rules={"image.mpl": "tensor"}), graph)


@pytest.mark.parametrize(
    ("model", "part", "shape"),
    [
        ({"heads": 8, "kv_heads": 2}, {"heads": 4}, ("image.heads", 4)),
        ({"heads": 8}, {"heads": 4, "kv_heads": 1}, ("image.kv_heads", 1)),
        ({"heads": 8, "kv_heads": 2}, {"heads": 4, "kv_heads": 1}, ("image.kv_heads", 1)),
        ({"heads": 8, "kv_heads": 2}, {"heads": 4, "kv_heads": 4}, ("image.heads", 4)),
        ({"heads": 8, "kv_heads": 2}, {"mlp": 64}, ("kv_heads", 2)),
        ({"heads": 8, "kv_heads": 2}, {"kv_heads": 8}, ("heads", 8)),
        ({"heads": 8}, {"mlp": 64}, ("heads", 8)),
    ],
)
def test_heads_of_keys_are_those_of_the_part_whose_queries_they_meet(
    model: dict[str, int], part: dict[str, int], shape: tuple[str, int]
) -> None:
    w = GraphWriter("captions", {"batch": 2, "seq": 16})
    w.size(embed=64, head_dim=8, **model)
    image = w.part("image", embed=32, patches=9, **part)
    for one, sequence in ((w, "seq"), (image, "patches")):
        x = one.input("x", ("batch", sequence, "embed"), "compute")
        made = pieces.attention(one, x, AttentionForm(fused=False))
    weights = {p.tensor.name: p.tensor.dims for p in w.graph(made).parameters}
    dim, count = shape
    assert weights["image/wk"][1:] == weights["image/wv"][1:] == (dim, "head_dim")
    assert w.sizes[dim] == count
    assert weights["wk"][1] == ("kv_heads" if "kv_heads" in model else "heads")


def test_sequences_of_any_name_take_the_rule_of_seq() -> None:
    w = GraphWriter("net", {"batch": 16, "target_seq": 64, "image.patches": 64, "height": 64})
    tensors = [w.tensor(dim, ("batch", dim)) for dim in w.sizes if dim != "batch"]
    context = plan(mesh={"fsdp": 4, "context": 4})
    rules = checked_rules(context, w.graph(tensors[0]))
    assert [rules.layout(t)[1] for t in tensors] == [("context",), ("context",), ()]
    assert [is_sequence(t.dims[1]) for t in tensors] == [True, True, False]


@dataclass(frozen=True, kw_only=True)
class WithList(Mine):
    widths: object = (1, 2)


@dataclass(kw_only=True)
class Changing(Architecture):
    name: str = "changing"

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        return w.input("ids", ("batch", "seq"))


class Plain(Changing):
    """A class without fields of its own is a dataclass still."""


class NoDataclass(Architecture):
    name = "plain"

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        return w.input("ids", ("batch", "seq"))


@dataclass(frozen=True, kw_only=True)
class Nameless(Architecture):
    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        return w.input("ids", ("batch", "seq"))


@dataclass(frozen=True, kw_only=True)
class OneArgument(Architecture):
    name: str = "one"

    def forward(self, w: GraphWriter) -> Tensor:  # type: ignore[override]
        return w.input("ids", ("batch", "seq"))


FROZEN = "@dataclass(frozen=True, kw_only=True)"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: WithList(widths=[1, 2]),
            "mine: widths is a list, which can change; write a tuple",
        ),
        (Changing, f"Changing can change after it is made; write {FROZEN} above it"),
        (Plain, f"Plain can change after it is made; write {FROZEN} above it"),
        (NoDataclass, f"NoDataclass is no dataclass; write {FROZEN} above it"),
        (
            Nameless,
            "Nameless has no name, by which results call it; write the field name: "
            'str = "nameless"',
        ),
        (
            OneArgument,
            "OneArgument.forward takes other arguments than a writer and choices; write "
            "def forward(self, w, choices)",
        ),
        (lambda: Mine(depth=3), "Mine has no key 'depth'; tpusim calls it 'layers'"),
        (lambda: Mine(3), "Mine takes no values without a name, and 1 are given; write Mine()"),
        (
            lambda: Mine(layers="4").parameter_count,
            "mine: layers: trips is '4'; it must be a whole number",
        ),
    ],
)
def test_a_class_that_is_no_architecture_is_refused_in_a_sentence(
    make: Callable[[], object], said: str
) -> None:
    with pytest.raises(TpusimError) as error:
        make()
    assert str(error.value) == said


def refused(write: Callable[[GraphWriter, Tensor], object]) -> str:
    w = GraphWriter("mine", {"batch": 2, "seq": 4, "embed": 8, "mlp": 16})
    with pytest.raises(TpusimError) as error:
        write(w, w.input("x", ("batch", "seq", "embed"), "compute"))
    return str(error.value)


def test_pieces_and_writers_say_what_an_argument_must_be() -> None:
    assert refused(lambda w, x: w.dense("wi", None, "mlp")) == (  # type: ignore[arg-type]
        "mine: dense: x is None; it must be a Tensor"
    )
    assert refused(lambda w, x: w.input("ids", "batch")) == (
        "mine: input: dims is 'batch'; it must be a list or a tuple, each text"
    )
    flat = Tensor("flat", ("batch", "embed"))
    assert refused(lambda w, x: pieces.attention(w, flat)) == (
        "mine: attention: x is flat[batch, embed]; it must be a tensor [batch, sequence, width]"
    )
    far = Tensor("far", ("batch", "time", "embed"))
    assert refused(lambda w, x: pieces.mlp(w, far)) == (
        "mine: mlp: far has the dimension time, which this model has not declared; write "
        "w.size(time=...), or a tensor of this writer"
    )
    assert refused(lambda w, x: w.layers("layer", 2, x, lambda w, x: None)) == (  # type: ignore[arg-type,return-value]
        "mine: what writes layer returns None; return its result, a tensor"
    )
    assert refused(lambda w, x: w.einsum("e", x, x, ("batch", "mlp"))) == (
        "mine: the einsum e makes e[batch, mlp], but neither x[batch, seq, embed] nor "
        "x[batch, seq, embed] has mlp; write dimensions that they have"
    )


def test_a_number_that_may_overflow_is_shown_with_its_type() -> None:
    assert refused(lambda w, x: pieces.channels(w, np.int64(8))) == (  # type: ignore[arg-type]
        "mine: channels: count is np.int64(8); it must be a whole number"
    )
    assert refused(lambda w, x: w.size(vocab=np.int64(8))) == (  # type: ignore[arg-type]
        "mine has the dimension vocab with size np.int64(8); write a whole number of at least 1"
    )
