"""Where PCIe binds, a pass lasts as long as its transfers: worked by hand."""

import pytest
from plans import flat, plan_of, small

from tpusim.hardware import Slice
from tpusim.program import Transfer, TransferKind
from tpusim.results import Result
from tpusim.simulation import simulate

LAYERS = 20
PCIE = 1e9
COPY = 4 * 128 * 64 * 2 / PCIE
"""Seconds of a layer's input: 4 sequences of 128 tokens, 64 wide, in bf16, at 1 GB/s."""


def result(
    offload: tuple[str, ...], pcie: float = PCIE, layers: int = LAYERS, **other: object
) -> Result:
    chip = Slice("v5e", "4x4").chip.replace(pcie_bandwidth=pcie)
    plan = plan_of({"data": 16}, seq_len=128, global_batch=64, offload=offload, **other)
    return simulate(small(layers=layers), plan, Slice(chip, "4x4"))


def test_a_step_is_its_transfers_and_what_is_outside_of_its_layers() -> None:
    """Twice LAYERS copies, one after another; a layer more costs two copies and its update."""
    slow = [result(("layer_in",), PCIE / 1000, layers=n) for n in (LAYERS, LAYERS + 1)]
    first, second = (r.step_time_s for r in slow)
    assert second - first == pytest.approx(2000 * COPY, rel=1e-3)
    assert first == pytest.approx(2 * LAYERS * 1000 * COPY, rel=1e-2)
    for way in ("pcie+", "pcie-"):
        assert slow[0].link_use[way] == pytest.approx(1 / 2, rel=1e-2)


def test_half_the_bandwidth_is_twice_the_step_where_pcie_binds() -> None:
    half, whole = (result(("layer_in",), pcie).step_time_s for pcie in (PCIE / 2000, PCIE / 1000))
    assert half == pytest.approx(2 * whole, rel=1e-2)


def test_where_compute_binds_only_the_first_fetch_is_waited_for() -> None:
    """The last copy leaves beside the head, and all others beside layers."""
    fast = result(("layer_in",), 100 * PCIE)
    copy = COPY / 100
    assert fast.breakdown_s["exposed host"] == pytest.approx(copy, rel=1e-6)


def test_moments_come_while_those_before_them_leave() -> None:
    """Two f32 moments a weight, in and out; each direction has a link of its own.

    Moments come once those of the weight before the last have left, and leave once they have come.
    """
    rate = PCIE / 1000
    slow = result((), rate, offload_optimizer=True)
    weights = LAYERS * (4 * 64 * 256 + 3 * 64 * 256 + 2 * 64) + 2 * 512 * 64 + 64
    back, away = (
        [float(op.bytes) for op, _ in flat(slow.program.body)
         if isinstance(op, Transfer) and op.kind is kind]
        for kind in (TransferKind.FROM_HOST, TransferKind.TO_HOST)
    )  # fmt: skip
    assert back == away
    assert sum(away) == 8 * weights
    came, left = [0.0], [0.0, 0.0]
    for nbytes in away:
        came.append(max(came[-1], left[-2]) + nbytes)
        left.append(max(left[-1], came[-1]) + nbytes)
    without = result((), rate).step_time_s
    assert slow.step_time_s - without == pytest.approx(left[-1] / rate, rel=1e-3)
    assert left[-1] < 1.5 * sum(away)
