"""Laws of replays, over every program of our own: what is read equals what was written.

The programs are those of experiments/jax_programs, compiled small, on several generations and over
two slices; each file of them states its FLOPs in closed form.
"""

import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from accounts import total_flops
from extent import sample
from hlo import DATA
from reports import render_files

import tpusim as ts
from tpusim.program import Collective, Compute, walk_ops
from tpusim.results import ReplayResult, explain_lines

MANIFEST: dict[str, dict[str, Any]] = json.loads((DATA / "manifest.json").read_text("utf-8"))
FILES = MANIFEST["files"]


@pytest.fixture(autouse=True)
def reader() -> None:
    pytest.importorskip("jaxlib", reason="reading HLO needs the extra `xla`")


@cache
def replayed(file: str, costs: str = "model", fold: bool = True) -> ReplayResult:
    return ts.simulate(ts.xla.load(DATA / file), costs=costs, fold=fold)


each_file = pytest.mark.parametrize("file", sorted(FILES))
a_few_files = pytest.mark.parametrize("file", sample(sorted(FILES), every=40))


@each_file
def test_flops_equal_the_closed_form(file: str) -> None:
    flops = total_flops(replayed(file).program.body)
    assert float(flops.total) == pytest.approx(FILES[file]["step_flops"], rel=0.01)


@each_file
def test_less_than_a_hundredth_of_the_time_is_not_understood(file: str) -> None:
    result = replayed(file)
    unknown = sum(each.picoseconds for each in result.unknown)
    assert unknown < 0.01 * result.timeline.total_ps


@a_few_files
@pytest.mark.parametrize("costs", ["model", "compiler"])
def test_folded_equals_unfolded_to_the_picosecond(file: str, costs: str) -> None:
    folded, unfolded = (replayed(file, costs, fold) for fold in (True, False))
    assert folded.timeline.total_ps == unfolded.timeline.total_ps
    assert folded.timeline.core_ps == unfolded.timeline.core_ps


@each_file
def test_the_breakdown_and_the_lines_sum_to_the_step(file: str) -> None:
    result = replayed(file)
    assert sum(result.breakdown_s.values()) == pytest.approx(result.step_time_s)
    by_line = sum(line.seconds for line in explain_lines(result).rows)
    assert by_line == pytest.approx(result.step_time_s)


PACKAGED = ("moe_v6e_4x4.hlo.gz", "convolution_v5e_4x4.hlo.gz", "decode_v5e_2x4.hlo.gz")
"""Of each kind of model a small one."""


@pytest.mark.parametrize("file", PACKAGED)
def test_code_that_moves_into_a_package_takes_its_time_along(file: str, tmp_path: Path) -> None:
    """All but what calls the compiler: each line is then beneath one of that."""
    text = gzip.decompress((DATA / file).read_bytes()).decode()
    moved = re.sub(r'^(\d+ ")((?!compil)\w+\.py")$', r"\1/site-packages/net/\2", text, flags=re.M)
    assert moved != text
    (tmp_path / "moved.hlo").write_text(moved)
    own, called = replayed(file), ts.simulate(ts.xla.load(tmp_path / "moved.hlo"))
    assert called.breakdown_s == own.breakdown_s
    rows = explain_lines(called).rows
    for row in rows:
        assert sum(each.seconds for each in row.library) in (0, pytest.approx(row.seconds))
    assert not {row.place for row in rows if row.library} - {"compiling.py:75"}
    beneath = {each.place: each.seconds for row in rows for each in row.library}
    assert sum(beneath.values()) > 0.9 * called.step_time_s
    before = {f"net/{row.place}": row.seconds for row in explain_lines(own).rows}
    assert {place: before[place] for place in beneath if place} == pytest.approx(beneath)


@each_file
def test_every_collective_of_the_text_runs(file: str) -> None:
    result = replayed(file)
    kinds = {op.kind for op, _ in walk_ops(result.program.body) if isinstance(op, Collective)}
    for opcode in FILES[file]["expected"]:
        if opcode.removesuffix("-start").startswith(("all-", "reduce-", "collective-")):
            assert opcode.removesuffix("-start") in kinds, opcode


@each_file
def test_the_peak_is_the_compilers_own(file: str) -> None:
    assert replayed(file).hbm_peak_bytes == FILES[file]["total_bytes"]


@a_few_files
def test_a_report_has_every_file(file: str) -> None:
    names = set(render_files(replayed(file), None))
    assert {"summary.txt", "result.json", "program.txt", "lines.csv", "trace.json.gz"} <= names
    assert {"breakdown.png", "timeline.png", "memory.png", "roofline.png"} <= names


@each_file
def test_names_are_those_of_the_programs_own_code(file: str) -> None:
    result = replayed(file)
    program = FILES[file]["program"]
    work = [op for op, _ in walk_ops(result.program.body) if isinstance(op, Compute)]
    known = [op for op in work if op.source.startswith((program, "parts"))]
    assert len(known) > 0.8 * len(work)
