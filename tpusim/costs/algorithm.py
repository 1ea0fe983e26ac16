"""Which algorithm carries out a collective."""

from enum import StrEnum

from tpusim.costs.torus import Group
from tpusim.errors import PlanError, nearest
from tpusim.program import CollectiveKind


class Algorithm(StrEnum):
    """How a collective uses the torus.

    ring: one ring through the whole group, along one dimension, even where it covers several.
    nd: all dimensions of the group at once. all-reduce: a gather or a reduce-scatter done as an
    all-reduce of a padded or unsliced buffer, twice the bytes. pairs: every device to every other.
    neighbours: to the next of the ring, both ways.
    """

    RING = "ring"
    ND = "nd"
    ALL_REDUCE = "all-reduce"
    PAIRS = "pairs"
    NEIGHBOURS = "neighbours"


CHOICES = {
    CollectiveKind.ALL_GATHER: (Algorithm.RING, Algorithm.ND, Algorithm.ALL_REDUCE),
    CollectiveKind.REDUCE_SCATTER: (Algorithm.RING, Algorithm.ND, Algorithm.ALL_REDUCE),
    CollectiveKind.ALL_REDUCE: (Algorithm.RING, Algorithm.ND),
    CollectiveKind.ALL_TO_ALL: (Algorithm.PAIRS,),
    CollectiveKind.PERMUTE: (Algorithm.NEIGHBOURS,),
}


def default_algorithm(kind: CollectiveKind, group: Group) -> Algorithm:
    """The algorithm that the TPU compiler picks for the group.

    Observed in compiled programs, libtpu 0.0.42.1: gathers and reduce-scatters of a group that
    covers a plane of a larger torus run as one ring; all-reduces use every dimension of the group
    (16 of 4x4x4, 256 of 8x16x16). A whole slice of several dimensions is gathered on all of them,
    and reduce-scattered by an all-reduce (16x16, 4x4x4).
    """
    if kind is CollectiveKind.ALL_TO_ALL:
        return Algorithm.PAIRS
    if kind is CollectiveKind.PERMUTE:
        return Algorithm.NEIGHBOURS
    if kind is CollectiveKind.ALL_REDUCE:
        return Algorithm.ND
    if len(group.ways) < 2 or not group.whole:
        return Algorithm.RING
    return Algorithm.ND if kind is CollectiveKind.ALL_GATHER else Algorithm.ALL_REDUCE


def algorithm(kind: CollectiveKind, group: Group, asked: str) -> Algorithm:
    """The algorithm asked for, or the default where `asked` is empty.

    Raises PlanError for one that the kind cannot use.
    """
    if not asked:
        return default_algorithm(kind, group)
    choices = CHOICES[kind]
    if asked not in choices:
        raise PlanError(f"algorithm {asked!r} cannot carry out {kind}; {nearest(asked, choices)}")
    return Algorithm(asked)
