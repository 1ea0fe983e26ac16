"""What is printed and written of texts and numbers that others chose: short, plain, and valid."""

import json
from math import inf, nan

import pytest
from commands import run
from inputs import blame
from pandas import DataFrame

from tpusim.base import FileError, PlanError, TpusimError
from tpusim.base.csv_cells import frame_csv
from tpusim.base.json_text import json_text
from tpusim.engine import picoseconds


def test_json_has_no_word_that_json_does_not_have() -> None:
    written = json_text({"a": nan, "b": [inf, 1.5, {"c": -inf}], "d": (True, None, "nan")})
    strict = json.loads(written, parse_constant=lambda word: pytest.fail(word))
    assert strict == {"a": None, "b": [None, 1.5, {"c": None}], "d": [True, None, "nan"]}
    assert json_text({"a": [1, 2.5]}) == json.dumps({"a": [1, 2.5]}, indent=2)


def test_no_cell_of_a_frame_is_a_formula_or_a_command() -> None:
    table = DataFrame({
        "=sum": [1, -2], "text": ["=1+1", "@x\x1b[31m"], "share": [-0.5, nan], "ok": [True, False],
    })  # fmt: skip
    assert frame_csv(table).splitlines() == [
        "'=sum,text,share,ok", "1,'=1+1,-0.5,True", "-2,'@x\ufffd[31m,,False",
    ]  # fmt: skip
    plain = DataFrame({"a": [1, 2], "b": ["x, y", ""], "c": [1e-9, 3.0]})
    assert frame_csv(plain) == plain.to_csv(index=False, lineterminator="\n")


@pytest.mark.parametrize("kind", [TpusimError, PlanError, FileError])
def test_a_message_is_short_and_plain_whatever_it_repeats(kind: type[TpusimError]) -> None:
    text = str(kind(f"no {'x' * 100_000}\x1b[31m; {'y ' * 50_000}"))
    assert len(text) <= 4001
    assert text.startswith("no xxx")
    assert "\x1b" not in text
    with pytest.raises(kind, match=r"^folder/a: no x"), blame("folder/a"):
        raise kind("no x")
    assert str(kind("two\nlines of usual length")) == "two\nlines of usual length"


@pytest.mark.parametrize(
    "arguments",
    [["x" * 100_000], ["chips", "x" * 100_000], ["simulate", "x" * 100_000],
     ["simulate", "a\x1b[31m.toml"], ["simulate", "--" + "x" * 100_000]],
)  # fmt: skip
def test_the_command_line_repeats_no_more_than_a_few_lines(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert len(error) < 5000
    assert error.rstrip("\n").isprintable()


def test_a_task_of_thirty_thousand_years_is_a_mistake() -> None:
    assert picoseconds(1e12) == pytest.approx(10**24)
    with pytest.raises(PlanError, match=r"takes 1e\+290 s, and more than 1e\+12 s is not simulat"):
        picoseconds(1e290)
