"""Passes that compiled programs showed, before any measured run."""

from tpusim.lowering.body_entries import Entry
from tpusim.lowering.lowering_pass import LoweringPass
from tpusim.lowering.observed.exchange_copies import copy_exchanges, copy_head_exchanges
from tpusim.lowering.observed.merged_all_reduces import merge_all_reduces
from tpusim.lowering.observed.reduced_at_once import reduce_at_once
from tpusim.lowering.observed.scattered_apart import scatter_apart
from tpusim.partition import Node

SCATTER_APART: LoweringPass[Node] = LoweringPass(
    "scatter-apart",
    "scatter the terms of a sum of matmuls before adding them up",
    "sums over tokens of matmuls that each become a collective matmul",
    "language models with norms sharded by tokens, v6e 4x4 and v5p 4x4x8",
    scatter_apart,
    observed=True,
)

REDUCE_AT_ONCE: LoweringPass[Node] = LoweringPass(
    "reduce-at-once",
    "all-reduce a gradient over all its axes, in place of a reduce-scatter and an all-reduce",
    "gradients of sharded weights that further axes replicate, where the SparseCore reduces",
    "11 plans with `data` and `fsdp` on 7x 2x2x2 to 4x4x4",
    reduce_at_once,
    lambda body: not body.ideal,
    observed=True,
)

MERGE_ALL_REDUCES: LoweringPass[Entry] = LoweringPass(
    "merge-all-reduces",
    "merge small all-reduces of activations that follow each other",
    "all-reduces of up to 16 MiB over the same axes",
    "480-billion-parameter encoder: K and V, 2 x 2 MiB",
    merge_all_reduces,
    observed=True,
)

EXCHANGE_COPIES: LoweringPass[Entry] = LoweringPass(
    "exchange-copies",
    "copy expert slots into pieces before an all-to-all and into order after it",
    "exchanges of slots between tokens and experts",
    "35 exchanges in seven programs on v5e, v5p and v6e",
    copy_exchanges,
    lambda body: not body.ideal,
    observed=True,
)

HEAD_COPIES: LoweringPass[Entry] = LoweringPass(
    "head-copies",
    "copy an attention kernel's tensors into order after an all-to-all",
    "exchanges of tokens for heads",
    "a program of 32 heads and 8 K/V heads over 4 devices of v6e 4x4",
    copy_head_exchanges,
    lambda body: not body.ideal,
    observed=True,
)
