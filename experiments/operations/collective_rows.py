"""Collectives of a measured table."""

import re
from typing import Any

from hlo_rows import hlo_line

from tpusim.costs import collective_seconds
from tpusim.hardware import DIE, Slice, Span
from tpusim.program import CollectiveKind

PARAMS = re.compile(r"\w+ (\d+) B full tensor over (\d+) (?:cores|devices|chips)")


def collective(measured: Any) -> float:
    """Return the predicted seconds of `DTYPE N B full tensor over D cores`, or of an HLO line."""
    found = PARAMS.match(measured.params)
    if not found:
        return hlo_line(measured)
    nbytes, devices = map(int, found.groups())
    shape = re.match(r"\d+(?:x\d+)+", measured.slice)
    if not shape:
        raise ValueError(f"slice {measured.slice!r} has no shape such as 2x2")
    pod = Slice(measured.chip, shape[0])
    spans = [Span(at, length) for at, length in enumerate(pod.topology.dims)]
    if devices == pod.chips * pod.chip.devices and pod.chip.devices > 1:
        spans.append(Span(DIE, pod.chip.devices))
    elif devices != pod.chips:
        raise ValueError(f"{devices} devices are no {shape[0]} of {measured.chip}")
    kind = CollectiveKind(measured.kind)
    return float(collective_seconds(kind, nbytes, spans, pod.chip, pod.topology))
