"""Embeddings of tokens: those of the model, and those that each layer has of its own."""

from tpusim.graph import Gather, GraphWriter, Ids, Table, Tensor, TensorRole, Tokens, checked_piece
from tpusim.models.pieces.mlp import activate
from tpusim.models.pieces.norms import norm


@checked_piece
def embedding(
    w: GraphWriter, ids: Tensor, table: Table | None = None, *, out: str = "embedded"
) -> tuple[Tensor, Tensor]:
    """Write the lookup of token embeddings; return the rows, [*ids, embed], and the table.

    ids: [batch, sequence].
    table: [vocab, embed], where another lookup has made it; else a weight `embedding`.
    """
    vocab, embed = w.dims(("vocab", "embed")) if table is None else table.dims
    table = table or Tensor(f"{w.prefix}embedding", (vocab, embed), TensorRole.PARAM)
    rows = w.tensor(out, (*ids.dims, embed))
    w.write(Gather(f"{w.prefix}{out.replace('embedded', 'embed')}", table, ids, rows, vocab))
    return rows, table


@checked_piece
def layer_embedding(w: GraphWriter, x: Tokens, ids: Ids, embedded: Tokens) -> Tensor:
    """Write what the tokens themselves add to the result of a layer, and return it.

    Each layer looks the tokens up in a table of its own, [vocab, layer_embed], and adds a
    projection of their common embeddings; a gate computed from the layer's result selects from it,
    and a second matrix widens it to `embed`.

    Source: Gemma 3n and 4 (huggingface/transformers, models/gemma3n/modeling_gemma3n.py, per-layer
    inputs). There one table holds those of all layers and one lookup precedes them: as many bytes.

    x: [batch, sequence, embed], the layer's result so far.
    ids: [batch, sequence], the tokens.
    embedded: [batch, sequence, embed], their embeddings.
    """
    own = w.marked("layer_embed_")
    table = own.weight("table", "vocab", "layer_embed")
    looked_up, _ = embedding(own, ids, table, out="rows")
    projected = norm(own, "norm", own.dense("wi", embedded, "layer_embed"), "layer_embed")
    given = own.add("sum", projected, looked_up)
    gated = activate(
        own, "gelu", (own.dense("gate", x, "layer_embed"), given), "hidden", own.prefix
    )
    return norm(own, "post_norm", own.dense("wo", gated, "embed", out="out"))
