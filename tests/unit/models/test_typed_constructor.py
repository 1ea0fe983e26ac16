"""Constructors whose keys a type checker and an editor know."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Required, Union, get_args, get_origin

import pytest
from inputs import TransformerKeys
from plans import small

from tpusim.base import ModelError
from tpusim.models import MODEL_KEYS, Transformer

RIGHT = """\
import tpusim as ts
from tpusim.models import Latent, MoE, SelfAttention, Transformer

flat = Transformer(layers=2, embed=8, mlp=8, heads=2, vocab=8, attention="dot", logit_cap=2)
moe = {"experts": 2, "experts_per_token": 1}
own = SelfAttention(window=8)
ts.models.Transformer(layers=2, embed=8, mlp=8, heads=2, vocab=8, attention=own, moe=moe)
ts.Plan(mesh={"fsdp": 2}, global_batch=2, seq_len=8, remat="full", dtypes={"gather": "int8"})
flat.replace(latent=Latent(), experts=2, experts_per_token=1).replace(**{"moe.expert_mlp": 4})
"""
WRONG = {
    "Transformer(layers=2, embed=8, mlp=8, heads=2, vocab=8, expert=4)": "call-arg",
    "ts.models.Transformer(layers=2, embed=8, mlp=8, heads=2, vocab=8, windows=4)": "call-arg",
    "Transformer(layers=2, embed=8, mlp=8, heads=2)": "call-arg",
    "Transformer(layers=2, embed=8, mlp=8, heads=2, vocab=8, window='all')": "arg-type",
    "Transformer(layers=2, embed=8, mlp=8, heads=2, vocab=8, moe=4)": "arg-type",
    "Transformer(layers=2, embed=8, mlp=8, heads=2, vocab=8, attention='flat')": "arg-type",
    "Transformer(layers=2.5, embed=8, mlp=8, heads=2, vocab=8)": "arg-type",
    "ts.Plan(mesh={'fsdp': 2}, global_batch=2, sequence=4)": "call-arg",
    "ts.Plan(mesh={'fsdp': 2})": "call-arg",
    "ts.Plan(mesh={'fsdp': 2}, global_batch=2, seq_len='all')": "arg-type",
}
"""Lines of a user's file, and the error that mypy reports for each."""


def plain(kind: Any) -> tuple[Any, ...]:
    """The types of a value, without what is said of its key; text for words."""
    while get_origin(kind) in (Annotated, Required):
        kind = get_args(kind)[0]
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return tuple(str if get_origin(one) is Literal else one for one in kinds)


def words(kind: Any) -> tuple[str, ...]:
    """The words that a value may be; empty where it is none of some words."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return next(filter(None, map(words, get_args(kind))), ())


def test_keys_have_the_types_of_their_fields() -> None:
    homes = {"": Transformer, **MODEL_KEYS.groups}
    kinds = {(home, field.name): field.type for home in homes for field in fields(homes[home])}
    for key, home in MODEL_KEYS.table.items():
        assert kinds[home] in plain(TransformerKeys.__annotations__[key]), key
    for group, kind in MODEL_KEYS.groups.items():
        assert kind in plain(TransformerKeys.__annotations__[group])


def test_words_are_those_that_are_accepted() -> None:
    known = {key: words(kind) for key, kind in TransformerKeys.__annotations__.items()}
    assert {key for key, said in known.items() if said} == {
        "kind", "activation", "qk_norm_heads", "norm", "attention", "softmax_dtype", "linear",
        "global_ends",
    }  # fmt: skip
    for key, said in known.items():
        if said:
            listed = re.escape(", ".join(filter(None, said)))
            with pytest.raises(ModelError, match=f"write one of {listed}$"):
                small(**{key: "other"})


def test_keys_that_must_be_given_are_the_fields_without_a_default() -> None:
    needed = {
        key for key, k in TransformerKeys.__annotations__.items() if get_origin(k) is Required
    }
    with pytest.raises(TypeError) as raised:
        Transformer()  # type: ignore[call-arg]
    assert all(key in str(raised.value) for key in needed)
    assert Transformer(**dict.fromkeys(needed, 2)).layers == 2  # type: ignore[arg-type]


@pytest.mark.thorough
def test_a_wrong_key_is_an_error_at_its_line(tmp_path: Path) -> None:
    """Of mypy, which reads the whole package for it."""
    pytest.importorskip("mypy", reason="mypy, of the extra `dev`, is not installed")
    (tmp_path / "user.py").write_text(RIGHT + "\n".join(WRONG), "utf-8")
    command = ["mypy", "--strict", "--cache-dir", ".cache", "--hide-error-context", "user.py"]
    ran = subprocess.run(
        [sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    found = [line for line in ran.stdout.splitlines() if ": error: " in line]
    first = RIGHT.count("\n") + 1
    wanted = [(f"user.py:{first + i}:", f"[{code}]") for i, code in enumerate(WRONG.values())]
    assert [(line.split(" ")[0], line.rsplit(" ", 1)[1]) for line in found] == wanted
