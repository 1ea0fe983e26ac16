"""Tables of text: as wide as they are in files, folded or wrapped on a narrow terminal."""

from tpusim.base.text_table import fixed_table, folded_table, padded, wrapped_table
from tpusim.base.text_width import LEAST_WIDTH, printed_on

ROWS = [("run", "chip", "step"), ("first", "v5e", "1.5 s"), ("second",)]


def test_the_first_columns_are_left_and_the_others_right() -> None:
    assert [*folded_table(ROWS)] == ["run     chip   step", "first    v5e  1.5 s", "second"]
    assert padded(ROWS, 2, "  ")[:2] == ["  run     chip   step", "  first   v5e   1.5 s"]


def test_columns_of_fixed_widths_may_end_in_text() -> None:
    rows = [("what", "time", "in"), ("  compute", "2 s", "layers"), ("  sum", "2 s")]
    lines = ["what         time  in", "  compute     2 s  layers", "  sum         2 s"]
    assert [*fixed_table(rows, (11, 6))] == lines


def test_wide_tables_are_folded_where_a_terminal_reads_them() -> None:
    rows = [("name", *("column" * 4,) * 3), ("a", *("1",) * 3)]
    assert len([*folded_table(rows)]) == len(rows)
    with printed_on(LEAST_WIDTH):
        lines = [*folded_table(rows)]
    assert [line.partition(" ")[0] for line in lines] == ["name", "a", "", "name", "a"]
    assert max(map(len, lines)) <= LEAST_WIDTH


def test_the_last_column_is_wrapped_beside_the_others_or_below_them() -> None:
    rows = [("a", "1", "word " * 40), ("bb", "22", "text")]
    lines = [*wrapped_table(rows, left=1)]
    assert lines[0].startswith("  a    1  word word")
    assert lines[1].startswith("          word")
    assert lines[-1] == "  bb  22  text"
    with printed_on(LEAST_WIDTH):
        below = [*wrapped_table([("a" * 50, "1", "text")], left=1)]
    assert below == [f"  {'a' * 50}  1", "      text"]
