"""The heap of temporaries: gaps worked out by hand, laws, and the compiler's own totals."""

import random
from pathlib import Path

import pytest
from compiler_parts import read_hlo_file, read_module
from extent import sample
from hlo import DATA, F32, REAL, main_of

from tpusim.compiler import Compiled
from tpusim.compiler.to_program.heap import TUPLE_TABLE, heap_bytes, output_bytes
from tpusim.compiler.to_program.memory_profile import argument_allocs, buffer_changes
from tpusim.hardware import parse_slice
from tpusim.program import HeapBuffer, largest_first_bytes, packed_bytes
from tpusim.simulation import replay

K = 1024


def of(*rows: tuple[int, int, int]) -> int:
    """The heap in KiB of buffers with a start, an end and KiB."""
    return packed_bytes(HeapBuffer(start, end, kib * K) for start, end, kib in rows) // K


def test_buffers_that_live_at_once_lie_side_by_side():
    assert of((1, 3, 2), (2, 4, 3), (3, 5, 4)) == 9


def test_memory_is_used_again_after_its_last_reader_and_not_beside_it():
    assert of((1, 2, 4), (3, 4, 4)) == 4
    assert of((1, 3, 4), (3, 4, 4)) == 8


def test_a_buffer_stays_where_it_is_and_leaves_a_gap():
    """4 KiB are free below the second when the third, of 5, comes: it goes above."""
    assert of((1, 2, 4), (1, 9, 1), (3, 9, 5)) == 4 + 1 + 5


def test_the_smallest_gap_that_fits_is_taken():
    """Gaps of 8 and 3 KiB are free: 3 KiB go into the second, and 8 into the first."""
    rows = [(1, 5, 8), (2, 9, 1), (3, 5, 3), (4, 9, 1), (6, 9, 3), (7, 9, 8)]
    assert of(*rows) == 8 + 1 + 3 + 1


def test_of_one_instruction_the_buffer_that_is_freed_first_comes_first():
    """The short one lies at the bottom, where the next, which is smaller, goes in turn."""
    assert of((1, 9, 4), (1, 2, 4), (3, 9, 3)) == 8


def test_sizes_are_rounded_up_to_what_the_compiler_aligns():
    assert packed_bytes([HeapBuffer(1, 2, 1), HeapBuffer(1, 2, 513)]) == 512 + 1024


def test_the_largest_first_leave_no_gap_that_the_order_leaves() -> None:
    """4 and 5 KiB one after the other at the bottom, and 1 above them."""
    rows = [HeapBuffer(1, 2, 4 * K), HeapBuffer(1, 9, K), HeapBuffer(3, 9, 5 * K)]
    assert (packed_bytes(rows), largest_first_bytes(rows)) == (10 * K, 6 * K)


@pytest.mark.parametrize("seed", range(50))
def test_the_heap_is_no_less_than_what_is_alive_and_no_more_than_all(seed: int) -> None:
    draw = random.Random(seed)
    starts = [draw.randrange(40) for _ in range(60)]
    rows = [(start, start + draw.randrange(12), draw.randint(1, 9)) for start in starts]
    alive = max(sum(kib for a, b, kib in rows if a <= t <= b) for t in range(60))
    assert alive <= of(*rows) <= sum(kib for *_, kib in rows)
    largest = largest_first_bytes(HeapBuffer(a, b, kib * K) for a, b, kib in rows) // K
    assert alive <= largest <= sum(kib for *_, kib in rows)


def test_each_tuple_that_is_made_has_a_table() -> None:
    """One for the pair, none where it is passed on, and two for a tuple in a tuple."""
    pair = f"({F32}, {F32})"
    module = main_of(
        f"%a = {F32} negate(%p)\n  %t = {pair} tuple(%p, %a)\n"
        f"  %o = {pair} opt-barrier(%t)\n  %u = ({pair}, {F32}) tuple(%o, %a)\n"
        f"  %v = {pair} get-tuple-element(%u), index=0\n"
        f"  %g = {F32} get-tuple-element(%v), index=1\n  ROOT %r = {F32} negate(%g)"
    )
    changes = buffer_changes(module)
    assert heap_bytes(module, changes) == 256 * K + 3 * TUPLE_TABLE
    assert output_bytes(changes) == 256 * K


REPORTED = [path for path in sorted(DATA.rglob("*.hlo.gz")) if read_hlo_file(path)[0] is not None]


@pytest.mark.parametrize("path", sample(REPORTED, 3), ids=lambda path: path.name)
def test_the_total_is_the_compiler_s_own(path: Path) -> None:
    """Within 0.35 %, though these programs are small: what is missing is constants."""
    pytest.importorskip("jaxlib.xla_client")
    header, data = read_hlo_file(path)
    assert header is not None
    module = read_module(data)
    changes = buffer_changes(module)
    arguments = sum(alloc.bytes for alloc in argument_allocs(module))
    reported = header["memory"]
    assert arguments == pytest.approx(reported["arguments"], abs=64 * K)
    assert output_bytes(changes) == pytest.approx(reported["outputs"], abs=64 * K)
    found = arguments + output_bytes(changes) + heap_bytes(module, changes)
    assert 0.9965 < found / reported["total"] <= 1.0


def test_a_replay_of_the_bare_text_needs_what_the_compiler_says() -> None:
    """1321 MiB, of which 192 are arguments (its memory report)."""
    pytest.importorskip("jaxlib.xla_client")
    _, data = read_hlo_file(REAL)
    result = replay(Compiled(name="scan_mlp", data=data), parse_slice("v5e:2x2"))
    assert result.hbm_peak_bytes / 2**20 == pytest.approx(1321, rel=0.002)
    assert sum(result.memory_bytes.values()) == result.hbm_peak_bytes
