"""Lookups of a sharded table: gathered, or its rows exchanged, and the bytes of either."""

from collections import Counter
from typing import Any

import pytest
from plans import calcs, comms, partitioned_of, payload, plan_of, sizes_of, small

from tpusim.base import Phase
from tpusim.graph import Gather, Scatter
from tpusim.models import Transformer
from tpusim.partition import CollectiveNode
from tpusim.plan import Plan
from tpusim.program import CollectiveKind

GATHER, EXCHANGE = CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL
REDUCE, SCATTER = CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER
TOKENS, EMBED, VOCAB = 32 * 16, 64, 512
IDS, BF16 = 4, 2
"""Bytes of a token's number and of a column of its row."""
ROWS = {
    (GATHER, "ids", Phase.FORWARD): 1,
    (EXCHANGE, "embedded", Phase.FORWARD): 1,
    (EXCHANGE, "d(embedded)", Phase.BACKWARD): 1,
}
TABLE = {
    (GATHER, "embedding", Phase.FORWARD): 1,
    (SCATTER, "d(embedding)", Phase.BACKWARD): 1,
}


def looked_up(model: Transformer, plan: Plan) -> list[CollectiveNode]:
    """The collectives of the table, its rows and the numbers of the tokens."""
    tensors = ("ids", "embedding", "embedded")
    found = (c for c, _ in comms(partitioned_of(model, plan)))
    return [c for c in found if c.tensor.removeprefix("d(").removesuffix(")") in tensors]


def moved(plan: Plan, **changes: Any) -> Counter[tuple[CollectiveKind, str, Phase]]:
    return Counter((c.kind, c.tensor, c.phase) for c in looked_up(small(**changes), plan))


@pytest.mark.parametrize("tokens", [16, 31, 32, 64])
@pytest.mark.parametrize("mesh", [{"fsdp": 8}, {"data": 1, "fsdp": 4}, {"fsdp": 16}])
def test_rows_are_exchanged_where_they_are_fewer_than_the_table_has(
    mesh: dict[str, int], tokens: int
) -> None:
    """The tokens of a device against 32 rows: one fewer is enough."""
    plan = plan_of(mesh, seq_len=tokens, global_batch=mesh["fsdp"])
    assert moved(plan, vocab=32) == (ROWS if tokens < 32 else TABLE)


def test_the_tokens_of_all_copies_of_a_shard_count() -> None:
    """Two copies of each shard of the table, with the tokens of two devices."""
    reduced = {(REDUCE, "d(embedding)", Phase.BACKWARD): 1}
    whole = ROWS | TABLE | reduced
    del whole[EXCHANGE, "d(embedded)", Phase.BACKWARD], whole[GATHER, "embedding", Phase.FORWARD]
    for data, vocab, expected in (
        (1, 65, ROWS), (1, 64, TABLE), (2, 129, whole), (2, 128, TABLE | reduced),
    ):  # fmt: skip
        mesh = {"data": data, "fsdp": 4}
        plan = plan_of(mesh, seq_len=16, global_batch=4 * data * 4)
        assert moved(plan, vocab=vocab) == expected, (data, vocab)


@pytest.mark.parametrize(("vocab", "gathers"), [(256, False), (257, True)])
@pytest.mark.parametrize("mesh", [{"data": 4, "fsdp": 4}, {"data": 2, "fsdp": 8}])
def test_gradients_of_rows_are_gathered_while_that_is_less_than_the_table_twice(
    mesh: dict[str, int], vocab: int, gathers: bool
) -> None:
    """512 tokens: as in 8 of 8 and 14 of 14 compiled programs over `data` and `fsdp`."""
    found = moved(plan_of(mesh), vocab=vocab)
    assert found[GATHER, "d(embedded)", Phase.BACKWARD] == gathers
    assert found[SCATTER, "d(embedding)", Phase.BACKWARD] == (not gathers)
    assert found[EXCHANGE, "embedded", Phase.FORWARD] == 1


def test_gradients_of_the_rows_of_a_tied_table_are_exchanged() -> None:
    found = moved(plan_of({"data": 4, "fsdp": 4}), vocab=512, tied_embeddings=True)
    assert found[EXCHANGE, "d(embedded)", Phase.BACKWARD] == 1


@pytest.mark.parametrize("data", [1, 2])
def test_the_bytes_of_an_exchange_are_those_of_the_tokens(data: int) -> None:
    """Each runs among the tokens of a group of `fsdp`, but gathered gradients are of all."""
    model, plan = small(), plan_of({"data": data, "fsdp": 8})
    sizes, tokens = sizes_of(model, plan), TOKENS / data
    found = {c.tensor: c for c in looked_up(model, plan) if c.kind in (GATHER, EXCHANGE)}
    assert {name: payload(c, sizes) for name, c in found.items()} == {
        "ids": IDS * tokens,
        "embedded": BF16 * tokens * EMBED / 8,
        "d(embedded)": BF16 * (tokens * EMBED / 8 if data == 1 else TOKENS * EMBED),
    }
    own = found.pop("d(embedded)").axes
    assert own == (("data", "fsdp") if data > 1 else ("fsdp",))
    assert all(c.axes == ("fsdp",) for c in found.values())


@pytest.mark.parametrize("data", [1, 2])
def test_only_copies_of_a_shard_add_up_its_gradient(data: int) -> None:
    """A device has the gradients of its columns from all tokens of its group."""
    model, plan = small(), plan_of({"data": data, "fsdp": 8})
    sizes = sizes_of(model, plan)
    found = [c for c in looked_up(model, plan) if c.tensor == "d(embedding)"]
    assert [(c.kind, c.axes, payload(c, sizes)) for c in found] == [
        (REDUCE, ("data",), BF16 * VOCAB * EMBED / 8)
    ] * (data - 1)


def test_a_device_looks_up_its_columns_of_all_tokens() -> None:
    """So its reads and writes are as many as with a gathered table."""
    plan = plan_of({"data": 2, "fsdp": 8})
    partitioned = partitioned_of(small(), plan)
    lookups = [c for c, _ in calcs(partitioned) if isinstance(c.op, Gather | Scatter)]
    assert len(lookups) == 2
    for lookup in lookups:
        assert dict(lookup.split) == {"batch": ("data",), "embed": ("fsdp",)}


def test_the_rows_are_asked_for() -> None:
    for mesh in ({"fsdp": 8}, {"fsdp": 4, "tensor": 2}, {"fsdp": 2, "expert": 2}):
        changes = {"experts": 4, "experts_per_token": 2} if "expert" in mesh else {}
        found = looked_up(small(**changes), plan_of(mesh))
        assert {(c.kind, c.tensor, c.phase) for c in found} >= set(ROWS)
        assert all(c.asked for c in found)


def test_rows_in_vocabulary_shards_are_added_up_first() -> None:
    """`tensor` divides the rows: each device serves its own, and the sums are exchanged."""
    found = looked_up(small(), plan_of({"fsdp": 4, "tensor": 2}))
    assert [(c.kind, c.tensor, c.axes) for c in found if c.phase is Phase.FORWARD] == [
        (GATHER, "ids", ("fsdp",)),
        (REDUCE, "embedded", ("tensor",)),
        (EXCHANGE, "embedded", ("fsdp",)),
    ]


@pytest.mark.parametrize(
    ("mesh", "changes"),
    [
        ({"fsdp": 8}, {"style": "maxtext"}),
        ({"fsdp": 4, "tensor": 2}, {"rules": {"act_embed": "tensor"}}),
        ({"fsdp": 4, "dcn_fsdp": 2}, {}),
    ],
    ids=["maxtext", "act_embed", "slices"],
)
def test_the_table_is_gathered_where_rows_cannot_be_exchanged(
    mesh: dict[str, int], changes: dict[str, Any]
) -> None:
    """Also for few tokens; of `maxtext` steps it is what the compiler does."""
    found = moved(plan_of(mesh, **changes))
    assert not found.keys() & ROWS.keys()
    assert found.keys() >= {(GATHER, "embedding", Phase.FORWARD)}


@pytest.mark.parametrize("mesh", [{"fsdp": 4, "context": 2}, {"fsdp": 2, "context": 4}])
@pytest.mark.parametrize(("vocab", "rows"), [(513, True), (512, False)])
def test_rows_of_sharded_sequences_are_gathered_where_all_tokens_are_fewer(
    mesh: dict[str, int], vocab: int, rows: bool
) -> None:
    """512 tokens in all: each device has its columns of all rows, and takes its part of the sum."""
    plan = plan_of(mesh, seq_len=16, global_batch=32)
    gathered = {
        (GATHER, "ids", Phase.FORWARD): 1,
        (GATHER, "embedded", Phase.FORWARD): 1,
        (GATHER, "d(embedded)", Phase.BACKWARD): 1,
    }
    assert moved(plan, vocab=vocab) == (gathered if rows else TABLE)
    if rows:
        model = small(vocab=vocab)
        sizes = sizes_of(model, plan)
        found = {c.tensor: c for c in looked_up(model, plan)}
        assert payload(found["embedded"], sizes) == BF16 * TOKENS * EMBED
        assert payload(found["d(embedded)"], sizes) == BF16 * TOKENS * EMBED
        assert all(c.axes == ("fsdp", "context") and c.asked for c in found.values())


def test_a_table_that_is_not_sharded_moves_nothing_forward() -> None:
    assert moved(plan_of({"data": 8})) == {(REDUCE, "d(embedding)", Phase.BACKWARD): 1}


@pytest.mark.parametrize(("batch", "expected"), [(256, TABLE), (128, ROWS)])
def test_the_tokens_are_those_of_a_microbatch(
    batch: int, expected: dict[tuple[CollectiveKind, str, Phase], int]
) -> None:
    """Each of two microbatches has 16 sequences a device, or 8, of 16 tokens: 256 rows or 128."""
    plan = plan_of({"fsdp": 8}, global_batch=batch, microbatches=2)
    assert moved(plan, vocab=256) == expected
