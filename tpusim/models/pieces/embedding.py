"""Embeddings of tokens."""

from tpusim.graph import Gather, GraphWriter, Tensor, TensorRole


def embedding(
    w: GraphWriter, ids: Tensor, table: Tensor | None = None, *, out: str = "embedded"
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
