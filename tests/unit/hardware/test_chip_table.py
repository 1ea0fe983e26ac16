"""The catalogue as text: nothing is left out, and it fits a terminal."""

import re

import pytest

from tpusim.base import HardwareError
from tpusim.hardware import chip_names, load_entries, show_chip, show_chips


def test_the_table_has_a_row_a_chip() -> None:
    lines = show_chips().splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(chip_names())
    v4 = next(line for line in lines if line.startswith("v4"))
    assert re.split(r"\s{2,}", v4) == [
        *("v4", "2020", "1", "275", "275", "-", "32 GiB"),
        *("1.2 TB/s", "50 GB/s", "16x16x16", "6.25 GB/s", "3.22"),
    ]


@pytest.mark.parametrize("name", chip_names())
def test_every_number_is_shown_with_kind_source_and_note(name: str) -> None:
    text = show_chip(name)
    flat = " ".join(text.split())
    for field, entry in load_entries(name).items():
        assert re.search(
            rf"^{re.escape(field)} +{re.escape(entry.text)}.*{entry.kind}$", text, re.M
        )
        for part in (entry.source, entry.note, entry.data, *entry.range):
            assert part.rstrip(".") in flat, field


def test_the_text_fits_a_terminal_of_110_columns() -> None:
    for text in (show_chips(), *map(show_chip, chip_names())):
        assert max(map(len, text.splitlines())) <= 110


def test_an_unknown_chip_is_refused() -> None:
    with pytest.raises(HardwareError, match="did you mean 'v5e' or 'v5p'"):
        show_chip("v5")
