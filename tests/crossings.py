"""Transfers between four slices of v5e, all begun together: 64 MiB each, each on its own stream."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from tpusim.costs import CostedProgram, Task, cost_program
from tpusim.engine import run
from tpusim.hardware import ListedGroups, Placement, Slice, Span
from tpusim.program import Collective, CollectiveKind, Mode, Phase, Program

BYTES = 64 * 2.0**20
POD = Slice("v5e", "2x2", num_slices=4)
COSTS = POD.chip.costs
DELAY = COSTS.collective_launch + COSTS.dcn_latency
MOVING = BYTES / POD.chip.dcn_bandwidth
ROUNDED = 1e-5
"""The engine's rates are whole nanobytes a picosecond, rounded down."""

Pairs: TypeAlias = Sequence[tuple[int, int]]
"""The slices that send and those that receive."""


def listed(pairs: Pairs) -> ListedGroups:
    """Each device of a slice sends to its twins."""
    places = np.zeros((len(pairs), 2, 4), dtype=np.intp)
    places[..., 0] = pairs
    return ListedGroups.of(places, pairs=True, along=["dcn_stage"])


def sent(*permutes: Pairs, reduced: int = 0, elsewhere: Sequence[Pairs] = ()) -> CostedProgram:
    """Permutes of listed pairs, and so many all-reduces over all slices, all at once.

    elsewhere: what the program lists beside them.
    """
    known = {f"permute {at}": listed(pairs) for at, pairs in enumerate((*permutes, *elsewhere))}
    placement = Placement((("dcn_stage", ()), ("fsdp", (Span(0, 2), Span(1, 2)))),
                          tuple(known.items()))  # fmt: skip
    wanted = [(name, CollectiveKind.PERMUTE) for name in list(known)[: len(permutes)]]
    wanted += [("dcn_stage", CollectiveKind.ALL_REDUCE)] * reduced
    body = tuple(
        Collective(name=f"{at}", phase=Phase.FORWARD, kind=kind, axes=(name,), bytes=BYTES,
                   dtype="bf16", mode=Mode.ASYNC)
        for at, (name, kind) in enumerate(wanted)
    )  # fmt: skip
    program = Program(name="p", axes=(("dcn_stage", 4), ("fsdp", 4)), body=body)
    costed = cost_program(program, POD, placement)
    apart = (replace(op, stream=op.name) for op in costed.body if isinstance(op, Task))
    return replace(costed, body=tuple(apart))


def seconds(*permutes: Pairs, reduced: int = 0) -> float:
    """Until all of them are done."""
    return run([sent(*permutes, reduced=reduced)]).total_ps * 1e-12
