"""Quantities: what is read, what is refused and how, and that printing can be read back."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpusim.base import UnitError, format_bytes, format_rate, format_seconds, parse


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("32 GiB", "B", 32 * 2**30),
        ("32 GB", "B", 32e9),
        ("128 MiB", "B", 2**27),
        ("0 B", "B", 0),
        ("1.2 TB/s", "B/s", 1.2e12),
        ("6.4 Tbit/s", "B/s", 800e9),
        ("200Gbit/s", "B/s", 25e9),
        ("275 TFLOP/s", "FLOP/s", 275e12),
        ("1e15 FLOP/s", "FLOP/s", 1e15),
        ("1e3 GB/s", "B/s", 1e12),
        ("1.05 GHz", "Hz", 1.05e9),
        ("3 us", "s", 3e-6),
        ("3 µs", "s", 3e-6),
        ("3 μs", "s", 3e-6),
        ("  14 ms ", "s", 0.014),
        ("1.5 kW", "W", 1500),
        ("3.22 USD/h", "USD/h", 3.22),
    ],
)
def test_a_quantity_is_read_in_si(text: str, unit: str, value: float) -> None:
    assert parse(text, unit, "here") == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "unit", "fault"),
    [
        ("32", "B", "has no unit"),
        (32, "B", "is not a number followed by a unit"),
        (None, "s", "is not a number followed by a unit"),
        ("", "B", "is not a number followed by a unit"),
        ("many GB", "B", "is not a number followed by a unit"),
        ("1,2 TB/s", "B/s", "is not a number followed by a unit"),
        ("0x10 B", "B", "is not a number followed by a unit"),
        ("16 Gb", "B", "has the unit 'Gb'"),
        ("200 Gb/s", "B/s", "has the unit 'Gb/s'"),
        ("16 gib", "B", "has the unit 'gib'"),
        ("275 TFLOPS", "FLOP/s", "did you mean 'TFLOP/s'"),
        ("3 min", "s", "has the unit 'min'"),
        ("50 GB", "B/s", "has the unit 'GB'"),
        ("200 Gbit/s", "B", "has the unit 'Gbit/s'"),
        ("-1 GB", "B", "is negative"),
        ("inf B", "B", "is not finite"),
        ("nan s", "s", "is not finite"),
        ("1e400 B", "B", "is not finite"),
        ("1e308 EB", "B", "is not finite"),
    ],
)
def test_what_is_refused_is_named_with_an_example(text: object, unit: str, fault: str) -> None:
    with pytest.raises(UnitError, match=re.escape(fault)) as caught:
        parse(text, unit, "v9.toml [memory]")
    sentence = str(caught.value)
    assert sentence.startswith("v9.toml [memory]: ")
    example = re.search(r"write for example '([^']+)'$", sentence)
    assert example is not None
    assert parse(example[1], unit, "example") > 0


def test_gigabytes_and_gibibytes_differ() -> None:
    assert parse("1 GiB", "B", "") / parse("1 GB", "B", "") == pytest.approx(1.073741824)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (9.16 * 2**30, "9.16 GiB"),
        (1023.4 * 2**30, "1023 GiB"),
        (1023.7 * 2**30, "1 TiB"),
        (-41.2 * 2**30, "-41.2 GiB"),
    ],
)
def test_bytes_are_printed_with_binary_prefixes(value: float, text: str) -> None:
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (21.8, "21.8 s"),
        (123456, "123456 s"),
        (1, "1 s"),
        (0.99996, "1 s"),
        (0.0042, "4.2 ms"),
        (0.9994, "999 ms"),
        (9.996e-4, "1 ms"),
        (3.1e-6, "3.1 µs"),
        (45e-9, "45 ns"),
        (1e-12, "1 ps"),
        (0, "0 s"),
        (-0.25, "-250 ms"),
    ],
)
def test_seconds_are_printed_with_three_digits(value: float, text: str) -> None:
    assert format_seconds(value) == text


@given(st.floats(1e-11, 1e6))
def test_printed_seconds_read_back_to_three_digits(value: float) -> None:
    assert parse(format_seconds(value), "s", "") == pytest.approx(value, rel=5.01e-3)


@given(st.floats(1, 1e18))
def test_printed_bytes_and_rates_read_back_to_three_digits(value: float) -> None:
    assert parse(format_bytes(value), "B", "") == pytest.approx(value, rel=5.01e-3)
    assert parse(format_rate(value, "FLOP/s"), "FLOP/s", "") == pytest.approx(value, rel=5.01e-3)


@given(st.floats(0, 1e12), st.sampled_from(["B", "B/s", "FLOP/s", "Hz", "s", "W", "USD/h"]))
def test_reading_is_linear_in_the_number(value: float, unit: str) -> None:
    once, twice = parse(f"{value!r} {unit}", unit, ""), parse(f"{2 * value!r} {unit}", unit, "")
    assert once == value
    assert twice == 2 * once


@given(st.text(max_size=12))
def test_any_text_gives_a_value_or_a_unit_error(text: str) -> None:
    try:
        value = parse(text, "B/s", "here")
    except UnitError:
        return
    assert math.isfinite(value)
    assert value >= 0
