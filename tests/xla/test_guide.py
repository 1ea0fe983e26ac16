"""The user guide's JAX program compiles and replays as it stands there."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.xla,
    pytest.mark.skipif(find_spec("libtpu") is None, reason="needs pip install 'tpusim[xla]'"),
]

GUIDE = Path(__file__).parents[2] / "docs/user_guide.md"


def test_the_program_of_the_guide_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text("utf-8"), re.S | re.M)
    (block,) = [block for block in blocks if "ts.xla.compile" in block]
    exec(compile(block, "user_guide.md", "exec"), {})
    assert "step time" in capsys.readouterr().out
    assert (tmp_path / "step.hlo.gz").stat().st_size
