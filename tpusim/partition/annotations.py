"""The layouts of single tensors that a user gives."""

from collections.abc import Iterable, Mapping
from math import prod

from tpusim.errors import PlanError, nearest
from tpusim.graph import TILE, Tensor
from tpusim.partition.axes import axes_of, check_known, check_once
from tpusim.partition.layout import Axes, Layout
from tpusim.partition.plan import Plan


def annotations(
    plan: Plan, tensors: Iterable[Tensor], sizes: Mapping[str, int]
) -> dict[str, Layout]:
    """The layout of each annotated tensor; what a user annotates herself must divide."""
    known = {tensor.name: tensor for tensor in tensors if not tensor.name.startswith(TILE)}
    found = {}
    for name, given in plan.annotate.items():
        if name not in known:
            raise PlanError(
                f"plan.annotate names {name!r}, which is no tensor of the model: "
                f"{nearest(name, known)}"
            )
        tensor = known[name]
        if len(given) != len(tensor.dims):
            raise PlanError(
                f"plan.annotate.{name} gives {len(given)} entries, but the tensor has "
                f"{len(tensor.dims)} dimensions ({', '.join(tensor.dims)}); write one entry for "
                "each, None where it is not sharded"
            )
        layout = tuple(axes_of(rule) for rule in given)
        check_once(f"plan.annotate.{name}", [axis for axes in layout for axis in axes])
        for dim, axes in zip(tensor.dims, layout, strict=True):
            _check_annotated(f"plan.annotate.{name}", dim, sizes[dim], axes, plan.mesh)
        found[name] = tuple(tuple(a for a in axes if plan.mesh[a] > 1) for axes in layout)
    return found


def _check_annotated(where: str, dim: str, size: int, axes: Axes, mesh: Mapping[str, int]) -> None:
    check_known(f"{where} shards {dim}", axes, mesh)
    parts = prod(mesh[axis] for axis in axes)
    if size % parts:
        raise PlanError(
            f"{where} shards {dim} (size {size}) over {' x '.join(axes)} = {parts}, which does "
            f"not divide it; choose axes whose sizes divide {size}"
        )
