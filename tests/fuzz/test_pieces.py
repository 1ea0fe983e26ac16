"""Wrong types, counts and shapes for every public piece, writer method and architecture.

Each call writes, or is refused in one sentence; and what was written makes a graph with a backward
pass, or is refused so.
"""

import inspect
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from extent import thorough

from tpusim.base import TpusimError
from tpusim.graph import GraphWriter, Remat, Tensor, function, training_step
from tpusim.models import ARCHITECTURES, Architecture, GraphChoices, pieces

SIZES = {"batch": 4, "seq": 8, "embed": 16, "heads": 4, "head_dim": 4, "mlp": 32, "vocab": 64,
         "height": 8, "width": 8, "16.channels": 16, "expert": 4, "choice": 2, "expert_mlp": 8,
         "kv_rank": 4, "rope_dim": 2, "v_head_dim": 4, "kv_down": 6, "kv_up": 6, "q_rank": 4,
         "layer_embed": 4, "positions": 8, "joint_seq": 16, "96.modulations": 96}  # fmt: skip


def layer(w: GraphWriter, x: Tensor, *states: Tensor) -> Any:
    return states[0] if states else w.add("y", x, x)


def right(w: GraphWriter, name: str, callee: str) -> Any:
    """A value that fits an argument of this name."""
    x = w.input("x", ("batch", "seq", "embed"), "compute")
    if callee in IMAGES:
        x = w.input("x", ("batch", "height", "width", "16.channels"), "compute")
    if callee in ("classification_loss", "representation", "modulation"):
        x = w.input("x", ("batch", "embed"), "compute")
    ids = w.input("ids", ("batch", "seq"))
    heads = w.input("q", ("batch", "seq", "heads", "head_dim"), "compute")
    if callee in ("projected", "rotary"):
        x = heads
    values: dict[str, Any] = {
        "x": x, "first": x, "memory": x, "embedded": x, "made": x, "q": heads, "k": heads,
        "v": heads,  "t": heads, "lhs": x, "value": x, "vector": x, "shorts": "embed",
        "logits": x, "images": x, "texts": x,
        "state": w.state("s", *x.dims),
        "rhs": w.weight("weight", "embed", "mlp"), "ids": ids, "labels": ids, "parts": (x, x),
        "table": w.weight("table", "vocab", "embed"), "inputs": (x,), "xs": (x,), "ins": (x,),
        "rows": w.input("rows", ("batch", "96.modulations"), "compute"),
        "form": {"encoder": pieces.EncoderForm(), "language_model_loss": pieces.LossForm(),
                 "masked_language_model_loss": pieces.LossForm()}
                .get(callee, pieces.AttentionForm()),
        "routing": pieces.EVEN, "name": "one", "short": "one", "prefix": "p_", "mark": "m_",
        "embed": "embed", "out": None if callee in ("add", "norm_of_kind") else "made",
        "dim": "joint_seq" if callee in ("joined", "behind") else "embed",
        "width": "head_dim" if callee == "rotary" else "mlp",
        "over": 1 if callee == "dense" else x.dims[-1], "kind": "layer",
        "dims": {"reshape": x.dims, "recurrence": ("embed",)}.get(callee, "embed"),
        "count": 2, "out_channels": 8, "taps": 3 if callee == "pool" else (3, 3), "stride": 1,
        "layers": 2, "trips": 2, "classes": 3, "size": 4, "factor": 2, "flops": 1.0, "shift": 0,
        "gate": 0, "scale": 0, "given": 4, "activation": "relu",
        "low_rank_queries": True, "layer": layer, "step": layer,
        "states": ("h",), "emitted": ("h",), "names": ("a", "b"), "loss": x, "norm": "layer",
        "op": None, "dtype": "compute", "heads": "", "head_dim": 64,
    }  # fmt: skip
    return values[name]


IMAGES = ("convolution", "pool", "upsample", "mean_of_positions", "batch_norm", "device_norm",
          "frozen_norm", "instance_norm", "normed", "concatenated", "biased_convolution",
          "residual_block", "doubled")  # fmt: skip
"""Pieces that read images."""

WRITER = ("size", "dim", "dims", "extent", "twin", "scope", "marked", "part", "sized", "tensor",
          "weight", "input", "output", "state", "update", "stop", "write", "einsum", "dense",
          "pointwise", "add", "reshape", "layers", "streams", "recurrence", "graph")  # fmt: skip
PIECES = tuple(
    name
    for name, piece in vars(pieces).items()
    if inspect.isfunction(piece) and next(iter(inspect.signature(piece).parameters)) == "w"
)
FORMS = (pieces.AttentionForm, pieces.EncoderForm, pieces.LossForm, pieces.ExpertRouting,
         pieces.MoE, pieces.Latent, GraphChoices)  # fmt: skip


FORMS_OF: dict[str, dict[str, type]] = {
    "form": {"attention": pieces.AttentionForm, "attend": pieces.AttentionForm,
             "projections": pieces.AttentionForm, "relative_attention": pieces.AttentionForm,
             "seen": pieces.AttentionForm, "encoder": pieces.EncoderForm,
             "language_model_loss": pieces.LossForm,
             "masked_language_model_loss": pieces.LossForm},
    "routing": {"experts": pieces.ExpertRouting},
}  # fmt: skip
"""The class of the argument `form` or `routing`, by the piece."""


def wrong(w: GraphWriter, random: Random) -> Any:
    """Some value."""
    return random.choice([
        None, True, 0, -1, 3, 10**30, 2.5, float("nan"), "", "nope", "embed", b"embed", [], (), {},
        ["embed"], ("embed", 3), [None], object(), Tensor, len, function("relu"), {"embed": 3},
        w.input("flat", ("batch",)), w.weight("w2", "embed", "mlp"),
        Tensor("far", ("other", "embed")),
        (w.input("flat", ("batch",)),), [Tensor("far", ("batch", "seq", "other"))],
        w.input("pixels", ("batch", "height", "width", "16.channels")),
    ])  # fmt: skip


def arguments(
    w: GraphWriter, call: Callable[..., Any], name: str, random: Random
) -> tuple[list[Any], dict[str, Any]]:
    """Right arguments of a call with some that are wrong, missing or too many."""
    given: list[Any] = []
    keys: dict[str, Any] = {}
    for each in inspect.signature(call).parameters.values():
        if each.name in ("w", "self"):
            continue
        if each.kind is each.VAR_KEYWORD:
            continue
        if each.kind is each.VAR_POSITIONAL:
            given += [right(w, "dims", name)] if each.name in ("dims", "shorts") else []
        elif each.kind is each.KEYWORD_ONLY:
            if each.default is each.empty or random.random() < 0.3:
                keys[each.name] = each.default
                if each.default is each.empty:
                    keys[each.name] = right(w, each.name, name)
        elif each.default is each.empty:
            given.append(right(w, each.name, name))
    for key, forms in FORMS_OF.items():
        at = [*inspect.signature(call).parameters].index(key) - 1 if name in forms else len(given)
        if name in forms and random.random() < 0.6:
            form = constructed("form", w, random, forms[name])
            if at < len(given):
                given[at] = form
            else:
                keys[key] = form
    for _ in range(random.choice([0, 1, 1, 1, 2])):
        at = random.randrange(len(given) + len(keys) + 1)
        if at < len(given):
            given[at] = wrong(w, random)
        elif keys and at < len(given) + len(keys):
            keys[list(keys)[at - len(given)]] = wrong(w, random)
        elif random.random() < 0.5:
            given = given[:-1] if random.random() < 0.5 else [*given, wrong(w, random)]
        else:
            keys[random.choice(["foo", "out", "bias", "linear", "over", "name"])] = wrong(w, random)
    return given, keys


def one_call(random: Random) -> str:
    """Make a random call, and the graph of what it wrote; return whether it was refused."""
    w = GraphWriter("fuzzed", dict(SIZES))
    kind = random.choice(["piece"] * 3 + ["writer"] * 2 + ["architecture", "form"])
    if kind == "piece":
        name = random.choice(PIECES)
        call = getattr(pieces, name)
        given, keys = arguments(w, call, name, random)
        made = call(w, *given, **keys)
    elif kind == "writer":
        name = random.choice(WRITER)
        given, keys = arguments(w, getattr(w, name), name, random)
        made = getattr(w, name)(*given, **keys)
    else:
        made = constructed(kind, w, random)
        if isinstance(made, Architecture):
            text = {"seq_len": 16} if made.reads_text else {}
            made.graph(batch=2, **text)
        return "taken"
    if w.ops:
        loss = made if isinstance(made, Tensor) else w.ops[-1].outputs[0]
        training_step(w.graph(loss), Remat("full")).model_flops()
    return "taken"


def constructed(kind: str, w: GraphWriter, random: Random, form: type | None = None) -> Any:
    """An architecture of the catalogue or a form, with some fields wrong."""
    if kind == "form":
        form = form or random.choice(FORMS)
        names = [*inspect.signature(form).parameters]
        return form(**{random.choice(names): wrong(w, random)})
    one = random.choice([*ARCHITECTURES.values()])
    names = [*inspect.signature(one).parameters]
    names = [name for name in names if name != "keys"] + ["foo"]
    keys = {name: wrong(w, random) for name in random.sample(names, random.choice([1, 2]))}
    base = {"layers": 2, "embed": 16, "mlp": 32, "heads": 2, "vocab": 64}
    return one(**{**{k: v for k, v in base.items() if k in names}, **keys})


@pytest.mark.parametrize("count", [300, thorough(4000)])
def test_every_call_writes_or_is_refused_in_a_sentence(count: int) -> None:
    found: Counter[str] = Counter()
    faults: dict[str, str] = {}
    for seed in range(count):
        try:
            said = one_call(Random(seed))
        except TpusimError as error:
            said = "refused"
            text = str(error)
            if not text or len(text) > 400 or "\n" in text or " object at 0x" in text:
                faults[f"sentence: {text[:300]}"] = str(seed)
        except Exception as error:
            said = "raw"
            trace = inspect.getinnerframes(error.__traceback__)[-1] if error.__traceback__ else None
            where = f"{trace.filename.rsplit('/', 1)[-1]}:{trace.lineno}" if trace else ""
            faults.setdefault(f"{type(error).__name__} {where}: {error}"[:160], str(seed))
        found[said] += 1
    lines = "\n".join(f"seed {seed}: {fault}" for fault, seed in faults.items())
    assert not faults, f"{found}\n{lines}"
    assert min(found["taken"], found["refused"]) > count / 10, found
