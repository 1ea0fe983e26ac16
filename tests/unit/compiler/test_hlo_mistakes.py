"""Files that are no HLO, or not the TPU compiler's: each is one sentence that says what to give."""

import gzip
import re
import sys
from pathlib import Path

import pytest
from compiler_parts import HloParser, read_hlo_file, read_module
from hlo import F32, REAL, large_text, main_of, main_text

from tpusim.base import FileError
from tpusim.compiler.hlo import hlo_files, parser

pytest.importorskip("jaxlib.xla_client")

PLAIN = F32.partition(":")[0] + "}"
UNTILED = main_text(f"ROOT %r = {PLAIN} negate(%p)").replace(F32, PLAIN)
SHARDED = UNTILED.replace(", is_scheduled=true", ", num_partitions=8").replace(
    "parameter(0)", "parameter(0), sharding={devices=[8,1]<=[8]}"
)
GPU = UNTILED.replace("negate(%p)", 'custom-call(%p), custom_call_target="__cublas$gemm"')
MLIR = "module @jit_f {\n  func.func public @main(%arg0: tensor<4xf32>) {\n  }\n}\n"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "empty"),
        (b"import jax\n", "not HLO: it does not begin with `HloModule`"),
        (MLIR.encode(), "this is StableHLO or another MLIR text"),
        (b"ML\xefR\x01\x02", "this is MLIR bytecode"),
        (b"{ lambda ; a:f32[4]. let b:f32[4] = sin a in (b,) }", "this is a jaxpr"),
        (bytes(range(256)) * 30, "jaxlib cannot read this HLO: .*deserialize"),
        (UNTILED.encode(), r"this is HLO for a CPU .*T\(8,128\)"),
        (GPU.encode(), "this is HLO for a GPU"),
        (SHARDED.encode(), "before the compiler optimised it and partitioned it over 8 devices"),
        (b"// tpusim: {broken\nHloModule x\n", "line 1 begins with '// tpusim:' and is not JSON"),
        (b"// tpusim: [1]\nHloModule x\n", "line 1 .* holds no JSON object"),
        (REAL.read_bytes()[:3000], "broken gzip .*end-of-stream"),
        (b"\x1f\x8b" + bytes(40), "broken gzip"),
        (gzip.decompress(REAL.read_bytes())[:60_000], "line [0-9]+, where the text ends: jaxlib"),
    ],
)  # fmt: skip
def test_what_is_no_hlo_of_a_tpu(data, sentence, tmp_path):
    path = tmp_path / "given.hlo"
    path.write_bytes(data)
    with pytest.raises(FileError, match=sentence) as caught:
        read_module(read_hlo_file(path)[1], str(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("main", "sentence"),
    [
        (f"ROOT %r = {F32} negat(%p)", "HLO: line 6: jaxlib cannot read this HLO: .*opcode"),
        (f"ROOT %r = {F32} negate(%q)", "line 6: .*instruction does not exist: q"),
        (f"%t = ({F32}, {F32}) tuple(%p, %p)\n ROOT %r = {F32} negate(%t#0)",
         "line 7: .* newer jaxlib than [0-9.]+, which cannot read it; compile the program with"),
        (f"ROOT %r = {F32} call(%p), to_apply=%main", "line 6: .*does not exist: main"),
        (f"%d = f32[?]{{0:T(128)}} custom-call(%p), custom_call_target=\"x\"\n ROOT %r = {F32} "
         "negate(%p)", r"d of main has the shape f32\[\?\]\{0:T\(128\)\}, which is malformed"),
        (f"%d = f32[{'9223372036854775807,' * 3}1]{{3,2,1,0:T(8,128)}} custom-call(%p), "
         f"custom_call_target=\"x\"\n ROOT %r = {F32} negate(%p)", "does not fit in any memory"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_said_with_its_place(main, sentence):
    with pytest.raises(FileError, match=sentence):
        main_of(main)


def test_calls_that_double_at_each_of_many_levels_are_refused_at_once():
    levels = [f"%f0 (a: {F32}) -> {F32} {{\n ROOT %a = {F32} parameter(0)\n}}"]
    for at in range(1, 60):
        before = f"fusion(%b{at}), kind=kLoop, calls=%f{at - 1}"
        levels.append(
            f"%f{at} (b: {F32}) -> {F32} {{\n %b{at} = {F32} parameter(0)\n"
            f" %c{at} = {F32} {before}\n %d{at} = {F32} {before}\n"
            f" ROOT %e{at} = {F32} add(%c{at}, %d{at})\n}}"
        )
    with pytest.raises(FileError, match=r"main has [0-9,]{20,}"):
        main_of(f"ROOT %r = {F32} call(%p), to_apply=%f59", "\n\n".join(levels))


def test_lines_are_those_of_the_file_below_a_header():
    data = b"// tpusim: {}\n" + main_text(f"ROOT %r = {F32} negat(%p)").encode()
    with pytest.raises(FileError, match="HLO: line 7: jaxlib"):
        read_module(data)


def test_a_missing_file_and_one_that_is_too_large(tmp_path, monkeypatch):
    with pytest.raises(FileError, match="gone: cannot be read: No such file"):
        read_hlo_file(tmp_path / "gone")
    with pytest.raises(FileError, match="a folder; give the path of HLO"):
        read_hlo_file(tmp_path)
    monkeypatch.setattr(hlo_files, "MAX_HLO_BYTES", 50_000)
    with pytest.raises(FileError, match=r"more than .* when unzipped"):
        read_hlo_file(REAL)


def test_hlo_that_ends_the_parser_is_one_sentence_and_the_next_is_read():
    deep = "(" * 100_000 + "f32[2]" + ")" * 100_000
    with HloParser() as parser:
        with pytest.raises(FileError, match=r"jaxlib's parser ended with SIG.*so this HLO is malf"):
            read_module(main_text(f"ROOT %r = {deep} negate(%p)").encode(), parser=parser)
        assert read_module(REAL.read_bytes(), parser=parser).devices == 4


def test_a_parser_that_does_not_end_is_stopped():
    with HloParser() as parser:
        with pytest.raises(FileError, match="did not finish within 0 s"):
            parser.parse(gzip.decompress(REAL.read_bytes()), seconds=0.01)
        found = parser.parse(main_text(f"ROOT %r = {F32} negate(%p)").encode())
        assert "ENTRY %main" in found["text"]


def test_without_jaxlib_the_sentence_has_the_command(monkeypatch, tmp_path):
    (tmp_path / "jaxlib.py").write_text("raise ImportError('No module named jaxlib')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(FileError, match=re.escape("pip install 'tpusim[xla]'")):
        main_of(f"ROOT %r = {F32} negate(%p)")


def test_a_parser_that_cannot_start(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(FileError, match="cannot be started"):
        main_of(f"ROOT %r = {F32} negate(%p)")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not bound address space")
def test_hlo_that_needs_more_memory_than_the_parser_may_take(monkeypatch, tmp_path):
    tight = tmp_path / "parser.py"
    source = Path(parser.__file__).read_text()
    tight.write_text(source.replace("MAX_MEMORY = 2 * 2**30", "MAX_MEMORY = 8 * 2**20"))
    monkeypatch.setattr(parser, "__file__", str(tight))
    with pytest.raises(FileError, match=r"jaxlib's parser needs more than .* GiB for this HLO"):
        read_module(large_text(8e6).encode())
