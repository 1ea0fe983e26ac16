"""The compiler's account of HBM, as its dump and its summary write it."""

from pathlib import Path
from types import SimpleNamespace

from tpusim.compiler.memory_report import dumped_report, memory_report, summary_report

ASSIGNMENT = """BufferAssignment:
allocation 0: size 512, thread-local:
 value: <2 add.19 @0> (size=512,offset=0): bf16[]{:T(256)}
allocation 1: size 4000, parameter 0, shape |f32[1000]| at ShapeIndex {}, maybe-live-out:
allocation 2: size 300, parameter 1, shape |f32[75]| at ShapeIndex {}:
allocation 3: size 80, output shape is |f32[20]|, maybe-live-out:
allocation 4: size 20, color 1, parameter 2, shape |s32[]| at ShapeIndex {}:
allocation 5: size 6000, preallocated-temp:
allocation 6: size 7000, color 5, preallocated-temp:
"""
USAGE = "Memory Space: default (color=0)\nTotal bytes: 10400 (10.1KiB)\n"
STATS = SimpleNamespace(
    argument_size_in_bytes=4300,
    output_size_in_bytes=4080,
    alias_size_in_bytes=4000,
    peak_memory_in_bytes=9000,
    host_temp_size_in_bytes=7000,
)


def test_the_buffer_assignment_is_exact(tmp_path: Path) -> None:
    stem = "module_1.jit_step.after_optimizations"
    (tmp_path / f"{stem}-buffer-assignment.txt").write_text(ASSIGNMENT)
    (tmp_path / f"{stem}-memory-usage-report.txt").write_text(USAGE)
    found = memory_report(tmp_path, STATS)
    assert (found.arguments, found.outputs, found.aliased) == (4300, 80, 4000)
    assert (found.heap, found.total, found.host) == (6020, 10400, 7000)
    assert found.exact


def test_the_dump_alone_tells_what_shares_the_memory_of_arguments(tmp_path: Path) -> None:
    assert dumped_report(tmp_path) is None
    (tmp_path / "m-buffer-assignment.txt").write_text(ASSIGNMENT)
    (tmp_path / "m-memory-usage-report.txt").write_text(USAGE)
    assert dumped_report(tmp_path) == memory_report(tmp_path, STATS)


def test_without_it_the_summary_s_peak_is_the_total(tmp_path: Path) -> None:
    found = memory_report(tmp_path, STATS)
    assert found == summary_report(STATS)
    assert (found.total, found.heap, found.exact) == (9000, 9000 - 4300 - 80, False)
    assert "by the compiler's summary" in str(found)
