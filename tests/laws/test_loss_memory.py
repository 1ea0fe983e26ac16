"""What a loss holds in HBM, in units of one device's logits in bf16, beside the gathered head."""

from typing import Any

import pytest
from plans import flat, program_of

from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.program import Compute
from tpusim.simulation import simulate

MODEL = Transformer(layers=2, embed=1024, mlp=4096, heads=8, head_dim=128, vocab=2**18)
V5P = Slice("v5p", "2x2x4")
LOGITS = 2 * 4096 * 2**18 * 2


def loss_plan(**keys: Any) -> Plan:
    return Plan(**{"mesh": {"fsdp": 16}, "seq_len": 4096, "global_batch": 32} | keys)


def peak(pod: Slice = V5P, model: Transformer = MODEL, **keys: Any) -> float:
    """The bytes of buffers at the peak, without those between them."""
    result = simulate(model, loss_plan(**keys), pod)
    return (result.hbm_peak_bytes - result.memory_bytes.get("fragmentation", 0)) / LOGITS


@pytest.mark.parametrize("mesh", [{"fsdp": 16}, {"data": 4, "fsdp": 4}, {"fsdp": 4, "tensor": 4}])
def test_labels_by_index_hold_the_gradient_twice_in_f32(mesh: dict[str, int]) -> None:
    assert peak(mesh=mesh, loss_labels="index") - 4 == pytest.approx(
        peak(mesh=mesh, loss_labels="take") - 3, abs=0.05
    )


def test_labels_that_are_taken_hold_logits_in_f32_beside_the_others() -> None:
    assert peak(loss_labels="take") - 3 == pytest.approx(peak() - 2, abs=0.05)


def gathers_late(model: Transformer = MODEL, **keys: Any) -> bool:
    names = [op.name for op, _ in flat(program_of(model, loss_plan(**keys), V5P).body)]
    return names.index("loss/pick") > names.index("embed/dw")


@pytest.mark.parametrize("labels", ["take", "index"])
def test_the_gather_of_one_sequence_comes_last(labels: str) -> None:
    """If no copy comes before it, as each token's logits fill whole tiles of one dimension."""
    other = MODEL.replace(vocab=128256)
    assert gathers_late(loss_labels=labels, global_batch=16)
    assert not gathers_late(loss_labels=labels)
    assert not gathers_late(other, loss_labels=labels, global_batch=16)


def test_what_a_late_gather_holds() -> None:
    """Logits in f32 beside what the gradient takes, which of a mask is written over the others."""
    one, two = (
        {k: peak(loss_labels=k, global_batch=n) for k in ("take", "index")} for n in (16, 32)
    )
    head = 1024 * 2**18 * 2 / LOGITS
    assert one["take"] == pytest.approx((two["take"] - head) / 2 + head, abs=0.1)
    assert one["index"] == pytest.approx((two["index"] - head) / 2 + head + 1, abs=0.1)


@pytest.mark.parametrize(("chip", "shape", "over"), [("v6e", "4x4", True), ("7x", "2x2x2", False)])
def test_the_gradient_is_written_over_logits_of_the_same_tiles(
    chip: str, shape: str, over: bool
) -> None:
    program = program_of(MODEL, loss_plan(loss_labels="take", global_batch=16), Slice(chip, shape))
    made = [alloc.tensor for op, _ in flat(program.body) for alloc in op.allocs]
    assert ("d(logits)" in made) != over


@pytest.mark.parametrize("labels", ["mask", "take", "index"])
def test_logits_in_f32_are_gathered_as_they_are(labels: str) -> None:
    """The gradient of a mask is in bf16, as the cast to f32 is not in the matmul."""
    plan = loss_plan(loss_labels=labels, logits_dtype="f32")
    made = [
        alloc.bytes / LOGITS
        for op, _ in flat(program_of(MODEL, plan, V5P).body)
        for alloc in op.allocs
        if alloc.bytes / LOGITS > 0.9
    ]
    assert made == ([2, 2, 2, 1, 1] if labels == "index" else [2, 1])


def test_a_cast_of_the_logits_holds_nothing() -> None:
    assert peak(loss_dtype="f32") == peak()


def test_the_pass_can_be_switched_off() -> None:
    assert peak(loss_labels="index", without_passes=["pick-logits"]) == peak()


def test_a_scatter_touches_one_element_of_each_row() -> None:
    """The softmax's gradient is written in f32, copied, converted, and copied back."""
    plan = loss_plan(loss_labels="index")
    found = {
        op.name.removeprefix("loss/d"): op.work
        for op, _ in flat(program_of(MODEL, plan, V5P).body)
        if isinstance(op, Compute) and op.name.startswith("loss/d")
    }
    moved = {
        name: (round(work.read_bytes / LOGITS, 2), round(work.write_bytes / LOGITS, 2))
        for name, work in found.items()
    }
    assert moved == {
        "/softmax": (1, 2), "/flatten": (2, 2), "/scatter": (0, 0), "/convert": (2, 1),
        "/reshape": (1, 1),
    }  # fmt: skip
    assert found["/scatter"].scattered == 2 * 4096


TIED = MODEL.replace(tied_embeddings=True)


def names_of(pod: Slice, **keys: Any) -> list[str]:
    return [op.name for op, _ in flat(program_of(TIED, loss_plan(**keys), pod).body)]


def test_rows_of_a_tied_table_are_exchanged_and_it_is_gathered_for_the_head() -> None:
    names = names_of(V5P)
    assert (
        names.index("all-to-all/embedded@fsdp") < names.index("layers/in")
        if ("layers/in" in names)
        else True
    )
    assert names.index("all-gather/embedding@fsdp") == names.index("logits") - 1
    assert names.index("all-to-all/d(embedded)@fsdp") < names.index("embedding/dsum")


@pytest.mark.parametrize(
    ("chip", "shape", "mesh", "copied"),
    [
        ("v4", "2x2x4", {"fsdp": 16}, True),
        ("v6e", "4x4", {"fsdp": 16}, False),
        ("7x", "2x2x2", {"fsdp": 16}, False),
        ("v5p", "2x2x4", {"fsdp": 4, "tensor": 4}, False),
        ("v5p", "2x2x4", {"data": 4, "fsdp": 4}, False),
    ],
)
def test_the_ring_of_a_tied_table_reads_a_copy(
    chip: str, shape: str, mesh: dict[str, int], copied: bool
) -> None:
    names = names_of(Slice(chip, shape), mesh=mesh)
    assert ("logits/dw/turn" in names) == copied
    assert "logits/dw/turn" not in names_of(
        Slice(chip, shape), mesh=mesh, without_passes=["turn-heads"]
    )


@pytest.mark.parametrize("model", [MODEL, TIED])
def test_a_ring_that_is_a_loop_reads_the_gradient_of_the_logits_from_memory(
    model: Transformer,
) -> None:
    """One of four devices has two steps, which are no loop: each computes it."""
    rolled = peak(model=model, mesh={"fsdp": 8, "tensor": 2})
    unrolled = peak(model=model, mesh={"fsdp": 4, "tensor": 4})
    assert rolled - unrolled == pytest.approx(1, abs=0.3)


def test_the_cast_shard_of_a_head_is_freed_by_its_gather() -> None:
    """Those of layers in a scan live until the update."""
    program = program_of(MODEL, loss_plan(), V5P)
    freed = {name: op.name for op, _ in flat(program.body) for name in op.frees if "cast" in name}
    assert freed["head/cast"] == "all-gather/head@fsdp"
    assert freed["embedding/cast"] == "embed"
    assert freed["cast_weights"].startswith("update/")


@pytest.mark.parametrize(
    ("chip", "shape", "batch", "held"),
    [
        ("v4", "2x2x4", 16, True),
        ("v5p", "2x2x4", 16, True),
        ("v6e", "4x4", 16, False),
        ("v5p", "2x2x4", 32, False),
    ],
)
def test_the_gradient_of_one_sequence_is_computed_once(
    chip: str, shape: str, batch: int, held: bool
) -> None:
    """Without rings, where it is larger than the head's gradient."""
    keys = {"mesh": {"data": 4, "fsdp": 4}, "global_batch": batch}
    allocs = [
        alloc.tensor
        for op, _ in flat(program_of(MODEL, loss_plan(**keys), Slice(chip, shape)).body)
        for alloc in op.allocs
    ]
    assert ("d(logits)" in allocs) == held
    shorter = loss_plan(**keys, seq_len=1024)
    allocs = [
        alloc.tensor
        for op, _ in flat(program_of(MODEL, shorter, Slice(chip, shape)).body)
        for alloc in op.allocs
    ]
    assert "d(logits)" not in allocs


def test_the_value_of_the_loss_takes_the_place_of_logits_where_no_smaller_gap_is_left() -> None:
    """Labels by index: the copy of the gradient then lies above it (compiled: 5 and 4 of them).

    On v5p the cast shard of the head has left a gap for it, on v4 and v6e that is on the chip.
    """
    model = MODEL.replace(embed=2048, mlp=8192, heads=16, kv_heads=8)
    held = {
        chip: simulate(model, loss_plan(loss_labels="index"), Slice(chip, topology)).hbm_peak_bytes
        for chip, topology in (("v4", "2x2x4"), ("v6e", "4x4"), ("v5p", "2x2x4"))
    }
    assert (held["v4"] - held["v5p"]) / LOGITS == pytest.approx(1, abs=0.05)
    assert (held["v6e"] - held["v5p"]) / LOGITS == pytest.approx(1, abs=0.05)
    assert held["v4"] / 2**30 == pytest.approx(21.986, rel=0.01)  # compiled


SMALL_TABLE = Transformer(
    layers=2, embed=2048, mlp=8192, heads=16, kv_heads=8, vocab=32000, tied_embeddings=True
)


@pytest.mark.parametrize("batch", [64, 128])
def test_the_gradient_of_a_tied_head_is_a_ring_whether_or_not_its_rows_are_exchanged(
    batch: int,
) -> None:
    """They are for fewer tokens than words; otherwise they are added to the gathered gradient."""
    ops = [op.name for op in program_of(SMALL_TABLE, loss_plan(global_batch=batch), V5P).body]
    gathered = batch * 4096 // 16 >= SMALL_TABLE.vocab
    assert "logits/dw/ring" in ops
    assert ("all-gather/d(embedding)~logits@fsdp@fsdp" in ops) == gathered
    assert any(name.startswith("rows/") for name in ops) != gathered


def test_a_tied_head_to_which_rows_are_added_is_reduced_at_once_on_7x() -> None:
    plan = loss_plan(global_batch=128)
    names = [op.name for op in program_of(SMALL_TABLE, plan, Slice("7x", "2x2x2")).body]
    assert "logits/dw/ring" not in names
    assert any(name.startswith("all-reduce/d(embedding)~logits") for name in names)
    assert names.index("logits/dw") < names.index("layers/d")


@pytest.mark.parametrize(("chip", "gib"), [("v5p:2x2x4", 6.659), ("v6e:4x4", 4.684)])
def test_a_tied_head_of_a_gathered_table_needs_what_its_program_does(chip: str, gib: float) -> None:
    result = simulate(SMALL_TABLE, loss_plan(global_batch=128), Slice(*chip.split(":")))
    assert result.hbm_peak_bytes / 2**30 == pytest.approx(gib, rel=0.01)
