"""Collectives among listed devices: a flow at its rate against single messages on the links."""

import numpy as np
import pytest
from numpy.typing import NDArray

from tpusim.costs import cost_program
from tpusim.engine import run
from tpusim.hardware import ListedGroups, Placement, Slice
from tpusim.program import Collective, Mode, Phase, Program
from tpusim.program import CollectiveKind as Kind

MIB = 2**20
POD = Slice("v5e", "16x16")
CHIPS = np.indices((16, 16)).reshape(2, -1).T


def listed(chips: NDArray[np.intp], pairs: bool = False) -> ListedGroups:
    padding = np.zeros((*chips.shape[:2], 1), dtype=np.intp)
    return ListedGroups.of(np.concatenate([padding, chips, padding], axis=2), pairs, ("any",))


def seconds(kind: Kind, what: ListedGroups, network: str) -> float:
    op = Collective(name="c", phase=Phase.FORWARD, kind=kind, axes=("it",), bytes=64 * MIB,
                    dtype="bf16", mode=Mode.SYNC)  # fmt: skip
    program = Program(name="one", axes=(("any", 256),), body=(op,))
    placement = Placement((("any", ()),), listed=(("it", what),))
    return run([cost_program(program, POD, placement)], network=network).total_ps * 1e-12


def turned(order: NDArray[np.intp]) -> ListedGroups:
    return listed(np.stack([CHIPS, CHIPS[order]], axis=1), pairs=True)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_shift_by_several_places_shares_each_link_so_many_times(steps: int) -> None:
    """Along y, whose 16 places close: each message crosses `steps` links, and so do its bytes."""
    order = np.arange(256).reshape(16, 16)
    shift = turned(np.roll(order, -steps, axis=1).reshape(-1))
    flow, hops = (seconds(Kind.PERMUTE, shift, network) for network in ("flows", "hops"))
    assert flow == pytest.approx(hops, rel=0.01)
    rate = POD.chip.ici_bandwidth * POD.chip.costs.ici_efficiency
    assert flow == pytest.approx(steps * 64 * MIB / rate, rel=0.02)


def test_a_transposed_torus_is_as_fast_as_its_busiest_link() -> None:
    """(x, y) to (y, x): messages of a row all turn at the diagonal."""
    order = np.arange(256).reshape(16, 16).T.reshape(-1)
    flow, hops = (seconds(Kind.PERMUTE, turned(order), network) for network in ("flows", "hops"))
    assert hops == pytest.approx(flow, rel=0.35)
    assert hops >= flow * 0.99


@pytest.mark.parametrize("kind", [Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE])
def test_rings_through_blocks_of_chips(kind: Kind) -> None:
    """Blocks of 4 x 4, shifted by one place along both dimensions: no axes make them."""
    grid = np.roll(CHIPS.reshape(16, 16, 2), (1, 1), axis=(0, 1))
    blocks = grid.reshape(4, 4, 4, 4, 2).transpose(0, 2, 1, 3, 4).reshape(16, 16, 2)
    flow, hops = (seconds(kind, listed(blocks), network) for network in ("flows", "hops"))
    assert flow == pytest.approx(hops, rel=0.01)
