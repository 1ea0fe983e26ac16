"""Bytes on the wire, and the shares of them that are alike on both sides."""

import pytest
from compiler_parts import (
    CollectiveTraffic,
    ComparedCollective,
    grouped,
    ranked_differences,
    same_algorithm_share,
    same_mode_share,
    short_names,
)
from torus import received_bytes

from tpusim.program import CollectiveKind


def traffic(kind: str = "all-gather", route: str = "ring", **modes: float) -> CollectiveTraffic:
    whole = sum(modes.values())
    return CollectiveTraffic(
        kinds={kind: whole},
        modes=modes,
        algorithms={route: whole},
        exposed_s=0.5,
        operations=("x",),
    )


def row(
    plan: CollectiveTraffic | None, program: CollectiveTraffic | None, what: str = "layer/wq"
) -> ComparedCollective:
    return ComparedCollective(what=what, when="forward", axes=("fsdp",), plan=plan, program=program)


@pytest.mark.parametrize(
    ("kind", "devices", "expected"),
    [
        (CollectiveKind.ALL_GATHER, 4, 75.0),
        (CollectiveKind.REDUCE_SCATTER, 4, 75.0),
        (CollectiveKind.ALL_REDUCE, 4, 150.0),
        (CollectiveKind.ALL_TO_ALL, 16, 93.75),
        (CollectiveKind.PERMUTE, 16, 100.0),
        (CollectiveKind.ALL_GATHER, 1, 0.0),
    ],
)
def test_bytes_on_the_wire_are_those_that_a_device_receives(
    kind: CollectiveKind, devices: int, expected: float
) -> None:
    assert received_bytes(kind, devices) * 100.0 == expected


def test_a_row_in_one_mode_counts_with_the_bytes_of_both_sides() -> None:
    rows = [row(traffic(sync=60), traffic(sync=30)), row(traffic(sync=5), traffic(ring=5))]
    assert same_mode_share(rows) == pytest.approx(90 / 100)


def test_the_lesser_fraction_counts_where_a_side_has_several_modes() -> None:
    half = [row(traffic(sync=50, ring=50), traffic(sync=100))]
    assert same_mode_share(half) == pytest.approx(0.5)
    third = [row(traffic(sync=1, ring=2), traffic(sync=2, ring=1))]
    assert same_mode_share(third) == pytest.approx(2 / 3)


def test_what_one_side_lacks_is_different() -> None:
    rows = [row(traffic(sync=10), traffic(sync=10)), row(None, traffic(sync=20))]
    assert same_mode_share(rows) == pytest.approx(0.5)
    assert same_mode_share([]) == 1.0


def test_algorithms_are_judged_alike() -> None:
    rows = [
        row(traffic(sync=10), traffic(sync=10)),
        row(traffic(sync=10), traffic(route="all dimensions", sync=30)),
    ]
    assert same_mode_share(rows) == 1.0
    assert same_algorithm_share(rows) == pytest.approx(20 / 60)


def test_rows_of_which_the_same_is_said_are_one_difference() -> None:
    ring, gather = traffic("collective-permute", ring=2.0**20), traffic(**{"async": 2.0**20})
    rows = [
        row(gather, ring), row(gather, ring, "layer/wk"), row(gather, gather, "layer/wo"),
    ]  # fmt: skip
    assert [[each.what for each in alike] for alike in grouped(rows)] == [
        ["layer/wq", "layer/wk"],
        ["layer/wo"],
    ]
    words = {each.what: each.words for each in ranked_differences((), (), rows)}
    assert words["wq and wk"] == (
        "the plan gathers them asynchronously (fsdp, 2 MiB); the program has rings; exposed 1 s "
        "against 1 s"
    )
    assert words["wo"] == (
        "both gather it asynchronously (fsdp, 1 MiB); exposed 500 ms against 500 ms"
    )


def test_names_are_short_where_they_are_unambiguous() -> None:
    found = short_names(["dense/wq", "sparse/wq", "sparse/wi", "head"])
    assert found == {
        "dense/wq": "dense/wq", "sparse/wq": "sparse/wq", "sparse/wi": "wi", "head": "head",
    }  # fmt: skip
