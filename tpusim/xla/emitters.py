"""Which algorithm the compiler chose for a collective, from what it notes on it."""

import re
from collections.abc import Mapping
from typing import Any

from tpusim.network import Algorithm
from tpusim.program import CollectiveKind


def algorithm_of(kind: CollectiveKind, config: Mapping[str, Any]) -> tuple[str, str]:
    """The algorithm of `network.Algorithm` that the compiler's configuration names, and a note.

    Empty for what the kind's own is. The emitters are those of libtpu 0.0.42.1: gathers of one
    dimension run on one ring, of two and three on all of the group's, and so does the router that
    takes a whole v5e slice. Reductions are a ring, or have a phase for each dimension.
    """
    said = config.get("collective_algorithm_config")
    if not isinstance(said, dict) or not said.get("emitter"):
        return "", ""
    emitter, strategy = str(said["emitter"]), str(said.get("strategy", ""))
    if kind in (CollectiveKind.ALL_TO_ALL, CollectiveKind.PERMUTE, CollectiveKind.BROADCAST):
        return "", "" if emitter in _PAIRS else f"emitter {emitter} is not known"
    if found := re.search(r"(\d)DAllGather", emitter):
        return (Algorithm.RING if found[1] == "1" else Algorithm.ND), ""
    if "NetRouter" in emitter:
        return Algorithm.ND, ""
    if "Ring" in emitter or strategy:
        phases = re.search(r"phases:(\d+)", str(said.get("debug", "")))
        many = "ND" in strategy and (phases is None or phases[1] != "1")
        return (Algorithm.ND if many else Algorithm.RING), ""
    return "", f"emitter {emitter} is not known"


_PAIRS = (
    "AllToAllEmitter", "CollectivePermuteEmitter", "NetRouterEmitter", "RaggedAllToAllEmitter",
)  # fmt: skip
"""Emitters of all-to-alls and permutes."""
