"""Meshes over modules with shardings of GSPMD, of Shardy and without any: compiled, or refused."""

import re
from ast import literal_eval
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from commands import said
from extent import thorough
from stablehlo_modules import Case, case

import tpusim as ts
from tpusim.base import TpusimError
from tpusim.cli.main import run
from tpusim.compiler import compiling

pytestmark = [
    pytest.mark.xla,
    pytest.mark.skipif(find_spec("libtpu") is None, reason="needs pip install 'tpusim[xla]'"),
    pytest.mark.filterwarnings("ignore:Some donated buffers"),
]

LONGEST = 400
HINT = re.compile(r"write mesh=(\{[^}]*\}) \(--mesh ([^)]*)\)")
GSPMD = """
module @step attributes {mhlo.num_partitions = 8 : i32} {
  func.func public @main(%arg0: tensor<16x1024xbf16> {mhlo.sharding = "{devices=[2,4]<=[8]}"},
      %arg1: tensor<1024x512xbf16> {mhlo.sharding =
          "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"}) -> tensor<16x512xbf16> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] :
        (tensor<16x1024xbf16>, tensor<1024x512xbf16>) -> tensor<16x512xbf16> loc(unknown)
    return %0 : tensor<16x512xbf16> loc(unknown)
  }
}
"""


class _ReachedError(Exception):
    """The TPU compiler would run now."""


@pytest.fixture
def _cut(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise _ReachedError

    monkeypatch.setattr(compiling, "compile_apart", stop)


def outcome(tried: Case) -> str:
    """What is said of a case; "" where it is compiled."""
    try:
        ts.xla.compile(tried.text, slice=tried.slice, mesh=tried.mesh, cache=False)
    except _ReachedError:
        return ""
    except TpusimError as error:
        return str(error)
    raise AssertionError("the compiler is cut off")


@pytest.mark.usefixtures("_cut")
@pytest.mark.parametrize(
    ("first", "last"), [(0, 60), *(thorough(at, at + 100) for at in range(0, 1200, 100))]
)
def test_every_mesh_is_compiled_or_refused_in_a_sentence(first: int, last: int) -> None:
    """A mesh that a message proposes is none that the next one refuses."""
    found: Counter[str] = Counter()
    for number in range(first, last):
        tried = case(number)
        answer = outcome(tried)
        assert len(answer) <= LONGEST, (number, answer)
        assert "Traceback" not in answer, (number, answer)
        assert "Error" not in answer, (number, answer)
        found["refused" if answer else "compiled"] += 1
        if hint := HINT.search(answer):
            again = outcome(Case(tried.text, tried.slice, literal_eval(hint[1])))
            assert "mesh" not in again, (number, answer, again)
            found["as proposed"] += not again
    assert min(found.values()) >= (last - first) / 20, found
    assert set(found) == {"refused", "compiled", "as proposed"}


@pytest.mark.parametrize(
    "mesh", ["data=2,model=4", "data=8", thorough("x=4,y=2"), thorough("y=2,x=2,z=2")]
)
def test_shardings_of_gspmd_are_over_devices_and_not_over_axes(
    mesh: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A ring of 8 has one order of its devices, so all meshes are one program."""
    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "gspmd.mlir"
    file.write_text(GSPMD, "utf-8")
    code = run(["compile", str(file), "--slice", "v5e:2x4", "--mesh", mesh])
    out, error = capsys.readouterr()
    assert code == 0, error
    assert re.search(r"step time +9\.44 µs", out), out
    assert "all 3 scopes" in out, "it has no lines, and those of what compiles it are not its own"
    for file_of_ours in ("exported_call", "compiling", "main.py", "commands.py"):
        assert file_of_ours not in out


def test_a_mesh_that_is_not_given_is_proposed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gspmd.mlir"
    file.write_text(GSPMD, "utf-8")
    assert said(["compile", str(file), "--slice", "v5e:2x4"], capsys)[::2] == (
        2,
        "step is for 8 devices, and its shardings name no axes of a mesh, which says where "
        "the devices are; write mesh={'data': 2, 'model': 4} (--mesh data=2,model=4)\n",
    )
