"""A compiled program in a file: what was known of it comes back."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from compiled import HLO, WHOLE

import tpusim as ts
from tpusim.base import FileError, PlanError
from tpusim.compiler import Compiled, load


@pytest.mark.parametrize("file", ["step.hlo", "step.hlo.gz"])
def test_what_is_saved_comes_back_whole(tmp_path: Path, file: str) -> None:
    WHOLE.save(tmp_path / file)
    found = load(tmp_path / file)
    assert replace(found, data=HLO) == WHOLE
    assert found.hlo.strip() == HLO.decode().strip()


def test_a_saved_file_is_hlo_behind_a_comment(tmp_path: Path) -> None:
    WHOLE.save(tmp_path / "step.hlo")
    first, _, rest = (tmp_path / "step.hlo").read_bytes().partition(b"\n")
    assert first.startswith(b"// tpusim: {")
    assert rest == HLO


def test_a_slice_is_spelled_as_it_prints_and_was_once_a_list(tmp_path: Path) -> None:
    spelled = b'"slice": "v5e:2x2 x 2 slices"'
    WHOLE.save(tmp_path / "step.hlo")
    written = (tmp_path / "step.hlo").read_bytes()
    assert spelled in written
    (tmp_path / "old.hlo").write_bytes(written.replace(spelled, b'"slice": ["v5e:2x2", 2]'))
    assert load(tmp_path / "old.hlo").slice == WHOLE.slice


def test_equal_programs_make_equal_files(tmp_path: Path) -> None:
    for file in ("a.hlo.gz", "b.hlo.gz"):
        WHOLE.save(tmp_path / file)
    assert (tmp_path / "a.hlo.gz").read_bytes() == (tmp_path / "b.hlo.gz").read_bytes()


def test_of_other_files_only_the_hlo_is_known(tmp_path: Path) -> None:
    (tmp_path / "mine.hlo").write_bytes(HLO)
    assert load(tmp_path / "mine.hlo") == Compiled(name="mine", data=HLO)


def test_a_proto_has_no_text(tmp_path: Path) -> None:
    (tmp_path / "mine.pb").write_bytes(b"\x0a\x04jit_\x00\x01")
    assert load(tmp_path / "mine.pb").hlo == ""


def test_it_prints_as_a_short_report() -> None:
    assert str(WHOLE).splitlines() == [
        "step for v5e:2x2 x 2 slices (8 devices), mesh dcn_data=2, fsdp=4",
        "  compiled in 1.25 s (jax 0.10.2, libtpu 0.0.42.1)",
        "  flags        --xla_tpu_scoped_vmem_limit_kib=98304",
        "  HLO          75 B",
        "  HBM/device   10 B (arguments 3 B, outputs 2 B, heap 5 B)",
        "  model FLOPs  3 PFLOP per step",
    ]
    assert str(Compiled(name="mine", data=HLO)).splitlines() == ["mine", "  HLO          75 B"]


def test_how_far_it_was_compiled_is_kept_and_printed(tmp_path: Path) -> None:
    replace(WHOLE, until="schedule").save(tmp_path / "step.hlo")
    found = load(tmp_path / "step.hlo")
    assert found.until == "schedule"
    assert "note         structure only, until='schedule': no cycle estimates" in str(found)
    WHOLE.save(tmp_path / "whole.hlo")
    assert b'"until"' not in (tmp_path / "whole.hlo").read_bytes()
    assert "structure only" not in str(load(tmp_path / "whole.hlo"))


def test_estimates_that_no_code_was_generated_for_are_refused() -> None:
    sentence = r"step was compiled with until='schedule', so it has no cycle .* costs='model'$"
    with pytest.raises(PlanError, match=sentence):
        ts.simulate(replace(WHOLE, until="schedule"), costs="compiler")


def test_versions_that_are_not_tested_are_a_note() -> None:
    other = replace(WHOLE, versions=(("jax", "0.10.2"), ("libtpu", "0.0.51")))
    assert "  note         what is tested is libtpu 0.0.42.1" in str(other).splitlines()


PACKED = gzip.compress(HLO, mtime=0)  # without the time: every worker collects the same test


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (PACKED[:-9], "broken gzip"),
        (PACKED[:12] + b"\xff" * 30, "broken gzip"),
        (b'// tpusim: {"slice": 3}\n' + HLO, "line 1 is not what tpusim writes there"),
        (b'// tpusim: {"devices": [[1, 2]]}\n' + HLO, "line 1 is not what tpusim writes there"),
        (
            b'// tpusim: {"memory": {"total": 3}}\n' + HLO,
            r"line 1 is not what tpusim writes there \(memory has no 'arguments'\)",
        ),
        (
            b'// tpusim: {"model_flops": Infinity}\n' + HLO,
            r"line 1 is not what tpusim writes there \(inf is no number from 0 to 1e\+40\)",
        ),
        (b'// tpusim: {"seconds": NaN}\n' + HLO, "line 1 is not what tpusim writes there"),
        (b'// tpusim: {"seconds": -1}\n' + HLO, r".*\(-1 is no number from 0 to 1e\+40\)"),
        (b'// tpusim: {"mesh": [1]}\n' + HLO, "line 1 is not what tpusim writes there"),
        (b'// tpusim: {"slice"\n' + HLO, "line 1 begins with '// tpusim:' and is not JSON"),
    ],
)
def test_a_broken_file_is_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    file = tmp_path / "step.hlo"
    file.write_bytes(content)
    with pytest.raises(FileError, match=rf"step\.hlo: {sentence}|step\.hlo: .*({sentence})"):
        load(file)


def test_a_missing_file_and_one_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.hlo: cannot be read: No such file"):
        load(tmp_path / "none.hlo")
    with pytest.raises(FileError, match="cannot be written: No such file"):
        WHOLE.save(tmp_path / "none" / "step.hlo")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seconds", '"x"'), ("seconds", "NaN"), ("seconds", "-1"), ("seconds", "1e400"),
        ("seconds", "true"), ("model_flops", "-Infinity"), ("model_flops", "-5"),
        ("mesh", '{"fsdp": -4}'), ("mesh", '{"fsdp": NaN}'), ("mesh", '{"fsdp": 1.5}'),
        ("mesh", "[4]"), ("devices", "[[0, 0, NaN, 0, 0]]"), ("flags", "3"), ("versions", "[]"),
        ("memory", '{"arguments": -1, "outputs": 0, "aliased": 0, "heap": 0, "total": 0}'),
        ("memory", '{"arguments": NaN, "outputs": 0, "aliased": 0, "heap": 0, "total": 0}'),
        ("memory", '{"arguments": 0}'),
    ],
)  # fmt: skip
def test_what_is_no_number_in_a_header_is_one_sentence(
    key: str, value: str, tmp_path: Path
) -> None:
    path = tmp_path / "step.hlo"
    path.write_bytes(f'// tpusim: {{"{key}": {value}}}\n'.encode() + HLO)
    with pytest.raises(FileError, match=r"step\.hlo: line 1 is not what tpusim writes there \("):
        load(path)


def test_names_of_a_header_are_safe_to_print(tmp_path: Path) -> None:
    """A terminal would take control characters as commands; long ones are cut."""
    facts = {"name": "n\x1b[2J" * 100, "mesh": {"\x1b[31mfsdp": 4}, "versions": {"jax": "\x07"}}
    path = tmp_path / "step.hlo"
    path.write_bytes(f"// tpusim: {json.dumps(facts)}\n".encode() + HLO)
    printed = str(load(path))
    assert all(line.isprintable() for line in printed.splitlines())
    assert len(load(path).name) == 160
