"""The numbers on the panels of the torus heat map: as few as say all, and none on another."""

from itertools import combinations

import numpy as np
import pytest
from reports import DIGIT

from tpusim.report.figures.torus_labels import (
    NUMBER_GAP,
    NUMBER_HEIGHT,
    LabelSpace,
    TorusLabel,
    panel_labels,
)

LARGE = LabelSpace(30, 30, 7)
SMALL = LabelSpace(9.9, 9.9, 7)
"""A cell of a panel of four chips a side, and of sixteen."""


def said(shares: np.ndarray, room: LabelSpace = LARGE) -> list[tuple[float, float, str]]:
    return [(label.row, label.column, label.text) for label in panel_labels(shares, room)]


def test_a_panel_that_is_all_alike_has_one_number_with_its_sign() -> None:
    assert said(np.full((4, 4), 0.348)) == [(2, 2, "34.8%")]
    assert said(np.zeros((4, 4))) == [(2, 2, "0%")]
    unlinked = np.full((4, 4), 0.025)
    unlinked[:, 3] = np.nan
    assert said(unlinked) == [(2, 1.5, "2.5%")]


def test_what_no_number_tells_apart_is_alike() -> None:
    nearly = 0.1106 + np.arange(16).reshape(4, 4) * 1e-5
    assert said(nearly) == [(2, 2, "11.1%")]
    nearly[:, 3] += 0.02
    assert said(nearly) == [(2, 1.5, "11.1"), (2, 3.5, "13.1")]
    some = np.zeros((4, 4))
    some[0] = 1e-4
    assert said(some) == [(0.5, 2, "0.0"), (2.5, 2, "0")]


def test_neighbouring_rows_or_columns_that_are_alike_share_a_number() -> None:
    columns = np.tile([0.18, 0.18, 0.18, 0.004], (4, 1))
    assert said(columns) == [(2, 1.5, "18.0"), (2, 3.5, "0.4")]
    assert said(columns.T) == [(1.5, 2, "18.0"), (3.5, 2, "0.4")]
    columns[0] = np.nan
    assert said(columns) == [(2.5, 1.5, "18.0"), (2.5, 3.5, "0.4")]


def test_cells_of_which_each_is_another_have_numbers_where_there_is_room() -> None:
    shares = np.arange(16).reshape(4, 4) / 100
    shares[3, 3] = np.nan
    found = said(shares)
    assert len(found) == 15
    assert (0.5, 1.5, "1.0") in found
    assert (2.5, 3.5, "11.0") in found
    assert said(np.random.default_rng(0).random((4, 16)) / 20, SMALL) == []
    assert said(np.random.default_rng(0).random((9, 9)) / 20, LARGE) == []


def test_a_number_that_is_wider_than_its_column_stands_up_or_is_left_out() -> None:
    columns = np.tile([0.18] * 15 + [0.004], (16, 1))
    assert [(one.text, one.upright) for one in panel_labels(columns, SMALL)] == [
        ("18.0", False), ("0.4", True),
    ]  # fmt: skip
    assert [one.text for one in panel_labels(columns, LabelSpace(5, 5, 7))] == ["18.0"]


@pytest.mark.parametrize("shape", [(4, 4), (8, 8), (16, 16), (4, 16), (16, 4), (24, 24), (1, 16)])
@pytest.mark.parametrize("kind", ["rows", "columns", "cells"])
def test_no_number_lies_on_another(shape: tuple[int, int], kind: str) -> None:
    shares = np.random.default_rng(1).random(shape) / 4
    if kind != "cells":
        shares = np.broadcast_to(shares[:, :1] if kind == "rows" else shares[:1], shape)
    cell = min(30.0, 158 / max(shape))
    for one, other in combinations(panel_labels(shares, LabelSpace(cell, cell, 7)), 2):
        down, across = (sum(sizes) / 2 for sizes in zip(size(one), size(other), strict=True))
        apart_down, apart_across = abs(one.row - other.row), abs(one.column - other.column)
        assert apart_down * cell >= down + NUMBER_GAP or apart_across * cell >= across + NUMBER_GAP


def size(label: TorusLabel) -> tuple[float, float]:
    """Points of a number down and across."""
    high, wide = NUMBER_HEIGHT * 7, DIGIT * 7 * len(label.text)
    return (wide, high) if label.upright else (high, wide)
