"""Representative faults of a slice: one optical link out, or one optical circuit switch."""

from collections.abc import Mapping, Sequence
from typing import Any

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import HardwareError, nearest
from tpusim.hardware.broken_parts import is_made_of_cubes
from tpusim.hardware.slice_rules import CUBE
from tpusim.hardware.slices import Slice

FAULTS = ("link", "switch")
"""Kinds of faults with which a slice keeps running."""

_BESIDE = [1, 2]
"""A position on the face of a cube; all are alike, as a torus looks alike from every chip."""


@checked_call
def degraded(pod: Slice, fault: str, dim: int | None = None) -> Slice:
    """Return the slice with a representative fault: broken parts in place of its own, if any.

    fault: `link` for one optical link, `switch` for one optical circuit switch, which carries that
        link among others.
    dim: dimension of the fault; by default the longest, whose links most pairs of chips cross.

    Which dimension hurts a plan most depends on where its axes are: see `simulation.slowdown`.
    Raise HardwareError for an unknown kind, for a dimension that the slice does not have, and for a
    slice that ends with its first broken link.

    >>> print(degraded(Slice("v4", "4x4x8"), "switch"))
    v4:4x4x8, broken: switch z at 1,2
    """
    dims = pod.topology.dims
    if dim is not None and dim not in range(len(dims)):
        raise HardwareError(f"dim is {dim!r}; write a dimension of {pod.topology}, from 0")
    along = dims.index(max(dims)) if dim is None else dim
    return pod.changed(broken=_parts(pod, fault, along))


def _parts(pod: Slice, fault: str, dim: int) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    if fault not in FAULTS:
        raise HardwareError(f"the fault is {fault!r}; {nearest(str(fault), FAULTS)}")
    if fault == "switch" or not is_made_of_cubes(pod.topology):
        return {"switches": [{"dim": dim, "at": _BESIDE}]}
    at = list(_BESIDE[: len(pod.topology.dims) - 1])
    at.insert(dim, CUBE - 1)
    end = pod.topology.neighbour(tuple(at), dim, 1)
    return {"links": [{"between": [at, end]}]}
