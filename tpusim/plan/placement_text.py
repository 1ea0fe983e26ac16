"""Placements as text: `fsdp=256 on y,z · tensor=8 on x`, as results and frames write them."""

import re
from collections.abc import Mapping

from tpusim.base.errors import PlanError
from tpusim.base.shown_value import cut

_AXIS = re.compile(r"\s*(?P<axis>\S.*?)\s*(?:=\s*(?P<size>[0-9]+))?\s+on\s+(?P<parts>\S.*?)\s*")
_EXAMPLE = "'fsdp on y,z; tensor on x'"


def read_placement(text: str, mesh: Mapping[str, int]) -> dict[str, list[str]] | None:
    """Return the parts of the torus of each axis; None for an empty text.

    text: axes with their parts, separated by `·` or `;`. Sizes may be left out.
    mesh: that the sizes must agree with.

    Raise PlanError for a text that is no placement, and for one of another mesh.

    >>> read_placement("fsdp=64 on y[:4],z · tensor on x", {"fsdp": 64, "tensor": 8})
    {'fsdp': ['y[:4]', 'z'], 'tensor': ['x']}
    """
    found: dict[str, list[str]] = {}
    for part in re.split("[·;]", text) if text.strip() else ():
        read = _AXIS.fullmatch(part)
        if read is None:
            raise PlanError(
                f"plan.placement is {cut(text)!r}, of which {cut(part.strip())!r} is no axis on "
                f"dimensions of the torus; write for example {_EXAMPLE}"
            )
        axis, size = read["axis"], read["size"]
        if axis in found:
            raise PlanError(
                f"plan.placement is {cut(text)!r}, which has {axis} twice; write all of its parts "
                "at once, such as 'fsdp on y,z'"
            )
        if size is not None and axis in mesh and int(size) != mesh[axis]:
            raise PlanError(
                f"plan.placement has {axis}={size}, but plan.mesh has {axis}={mesh[axis]}; give "
                "the placement of this mesh, or leave it out and the best is chosen"
            )
        found[axis] = [each.strip() for each in read["parts"].split(",")]
    return found or None
