"""Collectives of a measured table."""

import re
from typing import Any

from hlo_rows import SLICE, hlo_line

from tpusim.costs import collective_seconds
from tpusim.hardware import DIE, Slice, Span
from tpusim.program import CollectiveKind

OLDER = r"TF [12]\b"
ONE_RING = "ring flat"
"""What the compiler of TensorFlow 1 and 2 made of a collective over all cores of a slice: one ring
in both directions, on which each core moves all its bytes. The profile of ResNet-50 on v2-8 has
`all-reduce-scatter` fusions that take 0.9 to 1.1 of its gathers' time; libtpu 0.0.42.1 compiles the
same reduce-scatter to an all-reduce in two phases and a slice.
"""

BOTH_SIDES = "pod_viewer"
"""A source whose sizes are those of operand and result together: 10,616,832 bytes of
`f32[288,8,128] fusion(f32[3,3,512,512])` over 8 cores are 9 parts of 8."""

PARAMS = re.compile(r"\w+ (\d+) B full tensor over (\d+) (?:cores|devices|chips)")


def collective(measured: Any) -> float:
    """Return the predicted seconds of `DTYPE N B full tensor over D cores`, or of an HLO line."""
    found = PARAMS.match(measured.params)
    if not found:
        return hlo_line(measured)
    nbytes, devices = map(int, found.groups())
    kind = CollectiveKind(measured.kind)
    if BOTH_SIDES in measured.source and kind is not CollectiveKind.ALL_REDUCE:
        nbytes = nbytes * devices // (devices + 1)
    shape = SLICE.match(measured.slice)
    if not shape:
        raise ValueError(f"slice {measured.slice!r} has no shape such as 2x2")
    pod = Slice(measured.chip, shape[0])
    spans = [Span(at, length) for at, length in enumerate(pod.topology.dims)]
    if devices == pod.chips * pod.chip.devices and pod.chip.devices > 1:
        spans.append(Span(DIE, pod.chip.devices))
    elif devices != pod.chips:
        raise ValueError(f"{devices} devices are no {shape[0]} of {measured.chip}")
    algorithm = ONE_RING if re.match(OLDER, measured.software) else ""
    return float(collective_seconds(kind, nbytes, spans, pod.chip, pod.topology, algorithm))
