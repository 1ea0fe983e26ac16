"""Groups of devices as coordinates of chips, from the spans of their axes."""

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tpusim.hardware import DIE, Span, Topology

CoveredPart = tuple[tuple[Span, ...], Topology, tuple[int, ...]]

Chips = NDArray[np.intp]
"""Coordinates of chips; the last index is the dimension."""


def on_torus(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return the spans on the torus: those longer than one, without the die."""
    return tuple(span for span in spans if span.dim != DIE and span.size > 1)


def merged(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return the spans of the same groups in one order, with those that continue others joined.

    >>> merged((Span(1, 2), Span(0, 4, 4), Span(0, 4)))
    (Span(dim=0, size=16, stride=1), Span(dim=1, size=2, stride=1))
    """
    found: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.dim, span.stride)):
        last = found[-1] if found else None
        if last and last.dim == span.dim and last.size * last.stride == span.stride:
            found[-1] = last._replace(size=last.size * span.size)
        else:
            found.append(span)
    return tuple(found)


def dimension_sizes(spans: Sequence[Span]) -> dict[int, int]:
    """Return the chips of a group along each dimension of the torus that it covers."""
    sizes: dict[int, int] = {}
    for span in on_torus(spans):
        sizes[span.dim] = sizes.get(span.dim, 1) * span.size
    return dict(sorted(sizes.items()))


def groups(spans: Sequence[Span], topology: Topology) -> Chips:
    """Return all groups of one axis or several side by side, [group, member, dimension].

    Members are in the order of the mesh, the first span outermost. Along a dimension, a position is
    a number of mixed radix, and a span is one of its digits: a group's members differ in the digits
    of its own spans, and the groups in all others.
    """
    steps = [np.eye(len(topology.dims), dtype=np.intp)[span.dim] * span.stride for span in spans]
    numbers = list(product(*(range(span.size) for span in spans)))
    offsets = np.array(numbers, dtype=np.intp).reshape(len(numbers), len(steps))
    offsets = offsets @ np.array(steps, dtype=np.intp).reshape(len(steps), len(topology.dims))
    free = [_origins(dim, length, spans) for dim, length in enumerate(topology.dims)]
    origins = np.array(list(product(*free)), dtype=np.intp)
    return origins[:, None, :] + offsets[None, :, :]


def _origins(dim: int, length: int, spans: Sequence[Span]) -> list[int]:
    """Return the positions along a dimension at which a group can start."""
    own = [span for span in spans if span.dim == dim]
    return [p for p in range(length) if all(p // s.stride % s.size == 0 for s in own)]


def covered_part(spans: Sequence[Span], topology: Topology) -> CoveredPart:
    """Return the spans, the torus of only the dimensions that they are on, and these dimensions.

    Along all other dimensions a group and its messages repeat. A twisted torus stays whole, because
    its wraps lead from one dimension into others.
    """
    spans = on_torus(spans)
    dims = tuple(sorted({span.dim for span in spans}))
    if topology.twisted or len(dims) == len(topology.dims):
        return spans, topology, tuple(range(len(topology.dims)))
    part = Topology(
        tuple(topology.dims[dim] for dim in dims), tuple(topology.wrap[dim] for dim in dims)
    )
    return tuple(span._replace(dim=dims.index(span.dim)) for span in spans), part, dims
