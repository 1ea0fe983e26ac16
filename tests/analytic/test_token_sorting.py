"""Sorting of tokens by their experts: passes over rows, and copies between two layouts."""

import pytest
from plans import any_program_of, flat, plan_of, small
from torus import copy_bandwidth

from tpusim.costs.compute import group_seconds
from tpusim.hardware import Slice, load_chip
from tpusim.program import Compute, VectorWork
from tpusim.simulation import simulate

POD = Slice("v5p", "2x2x1")
BF16, F32 = 2, 4


def sorting(choices: int, gradient: str = "gather") -> tuple[dict[str, VectorWork], int]:
    """Return the work of the dispatch, the combine and their gradients, and the tokens' bytes."""
    model = small(experts=16, experts_per_token=choices, expert_mlp=128)
    plan = plan_of({"fsdp": 4}, expert_sort_gradient=gradient)
    program = any_program_of(model, plan, POD)
    names = {
        name: op.work
        for op, _ in flat(program.body)
        if isinstance(op, Compute) and isinstance(op.work, VectorWork)
        for name in ("dispatch", "combine", "dispatch/d", "combine/d")
        if op.name == f"{'bwd/' * name.endswith('/d')}layer/{name}"
    }
    tokens = plan.global_batch * plan.seq_len // 4
    return names, tokens * model.embed * BF16


def test_choices_that_fill_tiles_are_sorted_without_a_copy() -> None:
    """8 choices are 8 sublanes: repeat and pick; pick and add; and their gradients."""
    found, own = sorting(8)
    row = 8 * own
    bytes_of = {name: (work.read_bytes, work.write_bytes) for name, work in found.items()}
    assert bytes_of == {
        "dispatch": (own + row, 2 * row),
        "combine": (2 * row, row + own),
        "dispatch/d": (2 * row, row + own),
        "combine/d": (own + 3 * row, 3 * row),
    }
    picked = {name: work.gathered for name, work in found.items()}
    assert picked == {
        "dispatch": 2 * row, "combine": 2 * row, "dispatch/d": 2 * row, "combine/d": 4 * row,
    }  # fmt: skip


@pytest.mark.parametrize(("choices", "stored"), [(2, 2), (4, 4), (6, 8), (12, 16)])
def test_other_choices_are_copied_from_one_layout_to_the_other(choices: int, stored: int) -> None:
    """What is stored, six choices in eight sublanes, is read and written, to be summed in f32.

    Of one layer of DeepSeek-V2-Lite on v5p (6 choices, 49152 tokens of 2048 a chip), the compiler
    repeats 201 MB to 1611, copies these to 1208, picks 1208; picks 1208, copies them to 3221 and
    adds those to 201 (libtpu 0.0.42.1).
    """
    found, own = sorting(choices)
    row, held = choices * own, stored * own
    wide = held * F32 // BF16
    bytes_of = {name: (work.read_bytes, work.write_bytes) for name, work in found.items()}
    assert bytes_of == {
        "dispatch": (own + held + row, held + row + row),
        "combine": (row + row + wide, row + wide + own),
        "dispatch/d": (row + row + held, row + held + own),
        "combine/d": (own + held + 3 * row + wide, held + 3 * row + wide),
    }


def test_rows_that_are_picked_move_at_their_own_share_of_the_bandwidth() -> None:
    device = load_chip("7x").device
    share = device.costs.gather_efficiency
    assert share < 1
    copy = VectorWork(1e9, 1e9, 0.0)
    pick = VectorWork(1e9, 1e9, 0.0, gathered=2e9)
    copied, picked = (
        float(group_seconds(work, device)) - device.costs.vector_launch for work in (copy, pick)
    )
    assert copied == pytest.approx(2e9 / copy_bandwidth(device))
    assert picked == pytest.approx(copied / share)


def test_a_slower_pick_slows_what_is_sorted_and_nothing_else() -> None:
    """Twice the time for picked rows, for each layer's six picks of a full checkpoint."""
    model = small(experts=16, experts_per_token=8, expert_mlp=128)
    dense = small()
    plan = plan_of({"fsdp": 4})
    times = {}
    for share in (1.0, 0.5):
        pod = Slice(load_chip("v5p").replace(gather_efficiency=share), "2x2x1")
        times[share] = [simulate(one, plan, pod).breakdown_s["vector"] for one in (model, dense)]
    row = 8 * plan.global_batch * plan.seq_len // 4 * model.embed * BF16
    more = times[0.5][0] - times[1.0][0]
    layer = 2 * row / copy_bandwidth(load_chip("v5p").device)
    assert more == pytest.approx(model.layers * 6 * layer, rel=1e-5)
    assert times[0.5][1] == pytest.approx(times[1.0][1])


@pytest.mark.parametrize("choices", [2, 8, 14])
def test_a_scatter_adds_one_row_after_the_other(choices: int) -> None:
    """Rows are picked from the tokens themselves; each gradient picks rows and adds them.

    One of 128 elements for each block of 384 rows, and again for each 224 rows of the result: as
    many as the tokens in the gradient of the dispatch, as many as the choices in that of the
    combine.
    """
    found, own = sorting(choices, "scatter")
    row = choices * own
    pieces = row / BF16 / 128
    assert found["combine"] == sorting(choices)[0]["combine"]
    dispatch, back, unsort = (found[name] for name in ("dispatch", "dispatch/d", "combine/d"))
    assert (dispatch.read_bytes, dispatch.write_bytes, dispatch.added) == (row, row, 0)
    assert (back.read_bytes, back.write_bytes) == (2 * row, row + own)
    assert back.added == pytest.approx(pieces * (1 + 384 / 224 / choices))
    gathered = sorting(choices)[0]["combine/d"]
    assert unsort.read_bytes - gathered.read_bytes == row
    assert unsort.write_bytes - gathered.write_bytes == row
    assert unsort.added == pytest.approx(pieces * (1 + 384 / 224))


def test_added_rows_take_the_cycles_of_their_program_on_one_core() -> None:
    """458,752 rows of 4096 on v5p: 230 ms, where the program of March 2025 has 3243 x 124,276
    bundles, of which blocks of 384 rows are 1195 and windows of 224 results 2048.
    """
    device = load_chip("v5p").device
    added = 458752 * 32 * (1 + 384 / 224)
    alone, both = (
        float(group_seconds(VectorWork(0.0, 0.0, 0.0, added=one), device)) for one in (0.0, added)
    )
    assert both - alone == pytest.approx((1195 + 2048) * 124_276 / 1.75e9, rel=0.01)


SCHEDULES = {
    "v4": (9438, 719), "v5e": (5235, 852), "v5p": (5242, 860), "v6e": (3843, 854),
}  # fmt: skip
"""Bundles of the compiler's final schedule for 128 rows of 4096 bf16 that a gather picks, and those
of them that start transfers (65,536 rows, libtpu 0.0.42.1)."""


@pytest.mark.parametrize("chip", SCHEDULES)
def test_rows_are_picked_as_their_schedule_has_it(chip: str) -> None:
    """Transfers bring two rows for each one, as two share each word; then the core waits, picks,
    and waits for its result, 0.5 us each time before a byte moves. Of two cores one picks while the
    other has HBM.
    """
    bundles, starts = SCHEDULES[chip]
    device = load_chip(chip).device
    rate = copy_bandwidth(device)
    row = 128 * 4096 * BF16
    seconds = bundles / device.clock + max(0, 2 * row / rate - starts / device.clock)
    seconds += row / rate + 2 * 0.5e-6
    copied = 2 * row / rate * device.tensor_cores
    assert device.costs.gather_efficiency == pytest.approx(copied / seconds, rel=0.03)


@pytest.mark.parametrize("capacity", [0.0, 2.0])
def test_each_row_of_sorted_experts_picks_its_bias(capacity: float) -> None:
    """Rows of biases are picked, written and read again, and their gradients added one by one.

    Experts with a capacity are a batch of matmuls, whose biases are repeated as they are read.
    """
    model = small(experts=16, experts_per_token=8, expert_mlp=128, mlp_bias=True)
    plan = plan_of({"fsdp": 4}, capacity_factor=capacity, dispatch="sort")
    works = {
        op.name: op.work
        for op, _ in flat(any_program_of(model, plan, POD).body)
        if isinstance(op, Compute) and isinstance(op.work, VectorWork) and "bias" in op.name
    }
    tokens = plan.global_batch * plan.seq_len // 4
    picked = {name: work.gathered for name, work in works.items() if work.gathered}
    added = {name: work.added for name, work in works.items() if work.added}
    if capacity:
        assert not picked
        assert not added
        return
    ins, out = (8 * tokens * width * BF16 for width in (128, model.embed))
    assert picked["layer/expert_wi_0_biased"] == picked["layer/expert_wi_1_biased"] == 2 * ins
    assert picked["layer/expert_wo_mlp_biased"] == 2 * out
    forward = works["layer/expert_wo_mlp_biased"]
    assert forward.write_bytes == 2 * out
    assert forward.read_bytes == 3 * out + 16 * model.embed * BF16
    pieces = sorted(8 * tokens * width / 128 * 0.127 for width in (128, 128, model.embed))
    assert sorted(added.values()) == pytest.approx(pieces)
