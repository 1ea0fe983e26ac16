"""Algorithm and memory spaces of a collective, from what the compiler notes on it."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tpusim.compiler.hlo.module import Computation, Instruction
from tpusim.compiler.hlo.shapes import HBM_SPACE, Shape
from tpusim.network import Algorithm
from tpusim.program import CollectiveKind


def collective_algorithm(kind: CollectiveKind, config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the `network.Algorithm` in the compiler's configuration of a collective, and a note.

    The algorithm is empty for the default of the kind. The emitters are those of libtpu 0.0.42.1:
    gathers over one dimension run on one ring, over two and three on all dimensions of the group,
    and so does the router that takes a whole v5e slice. Reductions are a ring, or have a phase per
    dimension.
    """
    said = config.get("collective_algorithm_config")
    if not isinstance(said, dict) or not said.get("emitter"):
        return "", ""
    emitter, strategy = str(said["emitter"]), str(said.get("strategy", ""))
    if kind in (CollectiveKind.ALL_TO_ALL, CollectiveKind.PERMUTE, CollectiveKind.BROADCAST):
        return "", "" if emitter in _EXCHANGE_EMITTERS else f"emitter {emitter} is not known"
    if found := re.search(r"(\d)DAllGather", emitter):
        return (Algorithm.RING if found[1] == "1" else Algorithm.ND), ""
    if "NetRouter" in emitter:
        return Algorithm.ND, ""
    if "Ring" in emitter or strategy:
        phases = re.search(r"phases:(\d+)", str(said.get("debug", "")))
        many = "ND" in strategy and (phases is None or phases[1] != "1")
        return (Algorithm.ND if many else Algorithm.RING), ""
    return "", f"emitter {emitter} is not known"


_EXCHANGE_EMITTERS = (
    "AllToAllEmitter",
    "CollectivePermuteEmitter",
    "NetRouterEmitter",
    "RaggedAllToAllEmitter",
)
"""Emitters of all-to-alls and permutes."""


def hbm_shares(
    where: Computation, collectives: Iterable[Instruction], made: Iterable[Shape]
) -> tuple[float, float]:
    """Return the shares in HBM, not in VMEM or CMEM, of the bytes of operands and of results.

    The compiler assigns memory where arrays enter and leave operations of the core. So in a fusion
    only parameters have a memory space; the collective's result has one where it leaves the fusion.
    """
    operands = [name for each in collectives for name in each.operands]
    read = (shape for name in operands for shape in _unwrap_bitcasts(where, name))
    return _hbm_share(read), _hbm_share(made)


def fusion_results(made: tuple[Shape, ...], fusion: Instruction | None) -> tuple[Shape, ...]:
    """Return the results of a collective, as they leave the fusion that contains it, if any."""
    if fusion is None:
        return made
    sizes = {(shape.dtype, shape.elements) for shape in made}
    return tuple(out for out in fusion.arrays if (out.dtype, out.elements) in sizes)


def _unwrap_bitcasts(where: Computation, name: str) -> tuple[Shape, ...]:
    while name in where and where[name].opcode == "bitcast" and where[name].operands:
        name = where[name].operands[0]
    return where[name].arrays if name in where else ()


def _hbm_share(shapes: Iterable[Shape]) -> float:
    """Return the share of the bytes in HBM; 1 if there are none."""
    in_hbm = total = 0.0
    for shape in shapes:
        total += shape.padded_bytes
        in_hbm += shape.padded_bytes if shape.space == HBM_SPACE else 0.0
    return in_hbm / total if total else 1.0
