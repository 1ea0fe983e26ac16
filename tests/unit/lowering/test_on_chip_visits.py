"""Visits of the chip: when a buffer is there, and the copies around its uses."""

from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tpusim as ts
from tpusim.base.phase import Phase
from tpusim.lowering.on_chip_buffers import LARGEST, MIB, NEAR
from tpusim.lowering.on_chip_visits import Visits, visits_of
from tpusim.models import ResNet
from tpusim.partition import ComputeNode, LoopNode
from tpusim.program import Compute, Dep, Transfer, TransferKind

PLACES = 20


def entries(*uses: tuple[int, ...], loop: int = -1) -> list[ComputeNode]:
    """Operations that make buffers `0`, `1`, ..., each at its first place, and read them after."""
    made = []
    for place in range(PLACES):
        entry = Mock(
            spec=LoopNode if place == loop else ComputeNode, op=Mock(), phase=Phase.FORWARD,
            writes=tuple(str(n) for n, one in enumerate(uses) if one[0] == place),
            reads=tuple(str(n) for n, one in enumerate(uses) if place in one[1:]),
        )  # fmt: skip
        entry.name = f"op{place}"
        made.append(entry)
    return made


def visits(*uses: tuple[int, ...], size: float = 10.0, room: float = 100.0, loop: int = -1):
    sizes = {str(number): size * MIB for number in range(len(uses))}
    return visits_of(entries(*uses, loop=loop), sizes, {}, [0.0] * PLACES, room * MIB)


def copies(found: Visits) -> list[Transfer]:
    held = (*found.before.values(), *found.after.values())
    return [copy for each in held for copy in each]


def test_a_buffer_leaves_beside_the_core_and_is_back_before_its_late_reader() -> None:
    found = visits((1, 2, 12))
    assert found.on_chip == {place: {"0": 1} for place in (1, 2, 12)}
    (leaving,), (arriving,) = found.after[1], found.before[12 - NEAR]
    for copy in (leaving, arriving):
        assert (copy.kind, copy.bytes) == (TransferKind.DMA, 10 * MIB)
    assert leaving.deps == (Dep("op1"),)
    assert arriving.deps == (Dep(f"op{12 - NEAR - 1}"),)
    assert found.waits == {12: [Dep(arriving.name)]}
    assert len(copies(found)) == 2


def test_what_is_used_in_one_go_has_no_visit() -> None:
    """It stays on the chip all of its life, or not at all (`placed_on_chip`)."""
    assert not copies(visits((1, 1 + NEAR, 1 + 2 * NEAR)))


def test_a_buffer_that_is_too_large_stays_in_hbm() -> None:
    largest = LARGEST / MIB
    assert copies(visits((1, 12), size=largest))
    assert not copies(visits((1, 12), size=largest + 1, room=1000.0))
    assert not copies(visits((1, 12), size=20.0, room=19.0))


def test_what_a_loop_reads_is_in_hbm() -> None:
    assert not copies(visits((1, 12), loop=12))


uses = st.lists(st.integers(0, PLACES - 1), min_size=2, max_size=5, unique=True).map(sorted)


@given(st.lists(uses.map(tuple), min_size=1, max_size=8), st.floats(5.0, 60.0))
def test_the_room_is_never_exceeded(used: list[tuple[int, ...]], room: float) -> None:
    """At an operation, what it has on the chip and what is under way to later ones."""
    found = visits(*used, room=room)
    held = [set(found.on_chip.get(place, ())) for place in range(PLACES)]
    for first, made in found.before.items():
        for copy in made:
            (waiting,) = (p for p, deps in found.waits.items() if Dep(copy.name) in deps)
            for place in range(first, waiting):
                held[place].add(copy.scope)
    assert max(10.0 * len(keys) for keys in held) <= room


SMALL = ResNet(name="small", image=64, classes=100)
PLAN = ts.Plan(global_batch=2048, mesh={"data": 8}, remat="none", optimizer="momentum")


def step(pod: str) -> ts.PlanResult:
    return ts.simulate(SMALL, PLAN, pod)


@pytest.mark.parametrize("pod", ["v4:2x2x2", "v6e:2x4"])
def test_copies_of_a_step_follow_what_they_wait_for_and_have_a_reader(pod: str) -> None:
    body = step(pod).program.body
    moved = [op for op in body if isinstance(op, Transfer) and op.kind is TransferKind.DMA]
    assert moved
    names = [op.name for op in body]
    assert len(names) == len(set(names))
    for copy in moved:
        assert all(names.index(dep.op) < names.index(copy.name) for dep in copy.deps)
    readers = [op for op in body if isinstance(op, Compute)]
    arriving = [copy for copy in moved if "/to-chip/" in copy.name]
    for copy in arriving:
        assert sum(Dep(copy.name) in op.deps for op in readers) == 1


def test_generations_without_room_have_no_copies() -> None:
    for pod in ("v3:2x2", "v5p:2x2x2"):
        kinds = {op.kind for op in step(pod).program.body if isinstance(op, Transfer)}
        assert TransferKind.DMA not in kinds
