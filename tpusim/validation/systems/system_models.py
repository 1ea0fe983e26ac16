"""The architecture of a measured system: from its dimensions, or by the name that was published.

A row is recognised by its words and columns, never by its id, so that another row of a system runs
as well. What a source leaves open is taken from the published architecture, with a note.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tpusim import models
from tpusim.base.errors import ModelError
from tpusim.models import Architecture, Transformer
from tpusim.validation.systems.system_rows import SystemRow


@dataclass(frozen=True, slots=True)
class SystemModel:
    """A model, and what its source says about the training of it.

    seq_len: tokens of an example, where the row gives none; 0 for models that read no text.
    batch: examples per step, where the row gives none.
    keys: keys of the plan beside the mesh, such as the optimizer of the recipe.
    notes: what was assumed.
    """

    model: Architecture
    seq_len: int = 0
    batch: int = 0
    keys: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


Recognise: TypeAlias = Callable[[SystemRow, re.Match[str]], SystemModel]


def model_of_row(row: SystemRow) -> SystemModel:
    """Return the model of a row. Raise ModelError if neither words nor dimensions name one."""
    for pattern, make in _SYSTEMS:
        if found := re.search(pattern, row.system):
            return make(row, found)
    if known := _in_zoo(row):
        return known
    if row.layers and {"d_model", "d_ff"} <= row.sizes.keys():
        return _of_dimensions(row)
    raise ModelError(
        f"{row.system[:80]!r} is no system that is known here, and the row does not give its "
        "dimensions (n_layers, d_model, d_ff, n_heads, vocab)"
    )


def _in_zoo(row: SystemRow) -> SystemModel | None:
    """Return the zoo's model whose name the row begins with."""
    plain = re.sub(r"[^a-z0-9.]", "", row.system)
    names = sorted(models.names(), key=len, reverse=True)
    for name in names:
        if plain.startswith(re.sub(r"[^a-z0-9.]", "", name)):
            return SystemModel(models.load(name), seq_len=2048)
    return None


def _of_dimensions(row: SystemRow) -> SystemModel:
    """Return the language model whose dimensions the row gives."""
    sizes, words, notes = row.sizes, row.words, []
    gated = bool(re.search(r"gated|swiglu|3 matrices|geglu", words))
    encoder = bool(re.search(r"encoder-only|\bbert\b", words)) and "decoder" not in words
    heads, vocab = sizes.get("n_heads", 0), sizes.get("vocab", 0)
    if not heads:
        heads = max(sizes["d_model"] // 128, 1)
        notes.append(f"heads are taken as {heads} of 128")
    if not vocab:
        vocab = 32000
        notes.append("the vocabulary is taken as 32000")
    model = Transformer(
        name=row.id,
        kind="encoder" if encoder else "decoder",
        layers=sum(row.layers),
        embed=sizes["d_model"],
        mlp=sizes["d_ff"],
        heads=heads,
        head_dim=sizes.get("head_dim", 0),
        kv_heads=1 if "multi-query" in words else 0,
        vocab=vocab,
        gated=gated,
        activation="silu" if re.search(r"silu|swish|swiglu", words) else "gelu",
        parallel="parallel attention" in words,
        tied_embeddings=True,
        rotary=False,
        attention="dot",
    )
    return SystemModel(model, seq_len=sizes.get("seq_len", 1024), notes=tuple(notes))


_SYSTEMS: tuple[tuple[str, Recognise], ...] = ()
"""Words of a published system, and its model; the first that is found counts."""
