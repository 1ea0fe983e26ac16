"""The command `tpusim compile`: what it refuses before it compiles."""

from pathlib import Path

import pytest

from tpusim.base import TpusimError
from tpusim.cli.program_commands import compile_ as compile_file


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"out": "step.txt"}, r"--out is 'step\.txt'; give a file that ends in \.hlo"),
        ({"mesh": "fsdp"}, "--mesh is 'fsdp'"),
        ({"pod": "v5e:3"}, "v5e"),
    ],
)
def test_what_cannot_be_compiled_is_refused(options, said: str, tmp_path: Path) -> None:
    given = {"pod": "v5e:2x2", "mesh": None, "out": None, "full": False, "time_limit": 60.0}
    with pytest.raises(TpusimError, match=said):
        compile_file(str(tmp_path / "none.mlir"), **{**given, **options})
