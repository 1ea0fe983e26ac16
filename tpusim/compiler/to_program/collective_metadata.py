"""Algorithm and memory spaces of a collective, from what the compiler notes on it, or would."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tpusim.compiler.hlo.module import Computation, Instruction
from tpusim.compiler.hlo.shapes import HBM_SPACE, Shape
from tpusim.hardware import CompilerRules
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


def unnoted_algorithm(
    rules: CompilerRules,
    kind: CollectiveKind,
    sides: Collection[int],
    devices: int,
    nbytes: float,
) -> str:
    """Return the algorithm of a synchronous collective for which no code was generated.

    rules: of the chip. They have what is not the default of the network's model, as seen in
        programs with notes (libtpu 0.0.42.1), but for one: on v5e, some plain gathers over a 16x16
        slice go through the router.
    sides: chips of a group along each dimension of the torus that it covers.
    devices: of a group; more than its chips if it crosses the die.

    It is empty for the default of the kind.
    """
    if len(sides) < 2 or set(sides) != {2}:
        return ""
    short = bool(rules.short_ring) and nbytes <= rules.short_ring
    if kind is CollectiveKind.ALL_REDUCE and len(sides) == 3 and devices == 8 and short:
        return Algorithm.RING
    pairs = {
        CollectiveKind.ALL_GATHER: rules.pair_gathers,
        CollectiveKind.ALL_REDUCE: rules.pair_reductions,
        CollectiveKind.REDUCE_SCATTER: rules.pair_scatters,
    }
    return pairs.get(kind, "")


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
