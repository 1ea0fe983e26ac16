"""What `tpusim simulate` prints for the flagship, word by word; numbers are masked as `#`.

Where the wording or the partition changes on purpose, change `flagship.txt` with it.
"""

import re
from pathlib import Path

import pytest
from commands import run

HERE = Path(__file__).parent
RUN = HERE.parents[1] / "experiments" / "bert_480b" / "run.toml"


def masked(text: str) -> str:
    """The text without its numbers, their prefixes of size, and how the lines are filled."""
    filled = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"(?<![\w:-])\d[\d,.]*(e-\d+)?( [KMG]iB|%)?", "#", filled)


@pytest.mark.usefixtures("advised")
def test_the_report_of_the_flagship(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", str(RUN)]) == 0
    assert masked(capsys.readouterr().out) == masked((HERE / "flagship.txt").read_text("utf-8"))


def test_the_mask_leaves_words_and_names() -> None:
    assert masked("bert-480b v4:8x16x16  9.16 GiB of\n  1,024 (50.0%) at 1.6e-07") == (
        "bert-480b v4:8x16x16 # of # (#) at #"
    )
