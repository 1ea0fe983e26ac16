"""The route of a collective: what it puts on each link of a device."""

import pytest
from torus import adding_seconds
from toruses import names_for, torus, whole

from tpusim.base import PlanError
from tpusim.costs import BUSIEST_WEIGHT, CollectiveRoute, best_route, route, route_seconds
from tpusim.hardware import DIE, Span, load_chip
from tpusim.network import Algorithm
from tpusim.program import CollectiveKind as Kind

TORUS = torus(8, 16, 16)
AXIS, PLANE = (Span(1, 16),), (Span(1, 16), Span(2, 16))


def classes(path: CollectiveRoute) -> set[str]:
    return {link for link, _ in path.uses}


def test_a_gather_as_an_all_reduce_moves_twice_the_bytes() -> None:
    gather, reduce = (
        route(Kind.ALL_GATHER, PLANE, TORUS, how) for how in (Algorithm.ND, Algorithm.ALL_REDUCE)
    )
    assert reduce.share == 2 * gather.share
    assert reduce.text == "as an all-reduce, all of y,z at once, 2 colours"


def test_a_plane_on_one_ring_takes_twice_its_two_dimensions() -> None:
    ring, plane = (route(Kind.ALL_REDUCE, PLANE, TORUS, how) for how in ("ring", "nd"))
    assert ring.share == pytest.approx(2 * plane.share)
    assert classes(plane) == {"ici:y+", "ici:y-", "ici:z+", "ici:z-", "hbm"}


@pytest.mark.parametrize(
    ("kind", "requested"), [(Kind.ALL_GATHER, "rings"), (Kind.ALL_TO_ALL, "ring")]
)
def test_an_algorithm_that_cannot_be_is_refused(kind: Kind, requested: str) -> None:
    with pytest.raises(PlanError, match=rf"algorithm '{requested}' cannot carry out {kind}; "):
        route(kind, AXIS, TORUS, requested)


@pytest.mark.parametrize(
    ("kind", "bytes_touched"),
    [
        (Kind.ALL_GATHER, 2 * 15 / 16),
        (Kind.REDUCE_SCATTER, 3 * 15 / 16),
        (Kind.ALL_REDUCE, 5 * 15 / 16),
        (Kind.PERMUTE, 2),
    ],
)
def test_hbm_bytes_of_a_ring(kind: Kind, bytes_touched: float) -> None:
    """Two bytes a byte received, three where it is added to what is there."""
    path = route(kind, AXIS, TORUS)
    uses = dict(path.uses)
    assert path.share * uses["hbm"] / uses["ici:y+"] == pytest.approx(bytes_touched)


@pytest.mark.parametrize(
    ("kind", "operand", "result"),
    [
        (Kind.ALL_GATHER, 1 / 16, 29 / 16),  # its own shard is sent on once
        (Kind.REDUCE_SCATTER, 15 / 16, 30 / 16),  # all others' shards are added to what comes
        (Kind.ALL_REDUCE, 15 / 16, 60 / 16),
        (Kind.ALL_TO_ALL, 15 / 16, 15 / 16),
        (Kind.PERMUTE, 1, 1),
        (Kind.BROADCAST, 0, 2),
    ],
)
def test_hbm_bytes_are_of_the_operand_and_of_the_result(
    kind: Kind, operand: float, result: float
) -> None:
    path = route(kind, AXIS, TORUS)
    for shares in ((1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.25, 0.5), (0.0, 0.0)):
        found = path.with_hbm_shares(shares)
        drawn = shares[0] * operand + shares[1] * result
        assert dict(found.uses).get("hbm", 0) / BUSIEST_WEIGHT == pytest.approx(
            drawn / path.share, abs=1 / BUSIEST_WEIGHT
        )
        assert ("hbm" in dict(found.uses)) == (drawn > 0)
        assert [use for use in found.uses if use[0] != "hbm"] == [
            use for use in path.uses if use[0] != "hbm"
        ]


def test_what_is_added_on_the_chip_takes_the_vector_unit_alone() -> None:
    """Of three bytes that an addition touches, one is the operand's and two are the sum's."""
    chip, path = load_chip("v5p"), route(Kind.ALL_REDUCE, PLANE, TORUS)
    times = {shares: adding_seconds(path.with_hbm_shares(shares), 1e9, chip)
             for shares in ((1.0, 1.0), (0.0, 1.0), (1.0, 0.0), (0.0, 0.0))}  # fmt: skip
    whole = times[1.0, 1.0]
    assert times[0.0, 1.0] == pytest.approx(2 / 3 * whole)
    vector = 2 * path.added_bytes * 1e9 / (chip.vpu_flops * chip.costs.vector_efficiency)
    assert times[0.0, 0.0] == pytest.approx(vector)
    assert times[1.0, 0.0] == pytest.approx(max(whole / 3, vector))


def test_a_group_of_one_has_no_route() -> None:
    for spans in ((), (Span(0, 1),)):
        path = route(Kind.ALL_GATHER, spans, TORUS)
        assert (path.uses, path.hops, path.launched, path.share) == ((), 0, False, 0)


def test_both_devices_of_a_chip_alone_use_the_die() -> None:
    path = route(Kind.ALL_GATHER, (Span(DIE, 2),), TORUS)
    assert classes(path) == {"die+", "die-", "hbm"}
    assert (path.share, path.hops, path.carried) == (0.5, 1, None)
    assert route(Kind.PERMUTE, (Span(DIE, 2),), TORUS).share == 1


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("nbytes", [0.0, 1e6, 1e9])
def test_the_best_route_takes_the_least_time(kind: Kind, nbytes: float) -> None:
    chip = load_chip("v4")
    best = route_seconds(best_route(kind, PLANE, TORUS, nbytes, chip), nbytes, chip)
    each = [route_seconds(route(kind, PLANE, TORUS, how), nbytes, chip) for how in names_for(kind)]
    assert best == min(each)


def test_a_route_is_told_in_words() -> None:
    spans = (*whole(torus(4, 4, 4)), Span(DIE, 2))
    routes = (route(Kind.ALL_GATHER, spans, torus(4, 4, 4), how) for how in ("", "ring flat"))
    texts = [path.text for path in routes]
    assert texts == [
        "and across the die, all of x,y,z at once, 3 colours",
        "each device for itself, one ring of 64 through x,y,z",
    ]
