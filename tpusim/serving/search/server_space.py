"""The servers that a search chooses from."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

from tpusim.base.checked_call import checked_call
from tpusim.base.divisors import factored
from tpusim.base.errors import PlanError, TpusimError, nearest
from tpusim.base.shown_value import shown
from tpusim.base.value_checks import is_list
from tpusim.hardware import Slice
from tpusim.plan import ServingPlan
from tpusim.plan.serving_plan import SERVING_AXES
from tpusim.serving.configuration import Configuration
from tpusim.serving.engines import Engine
from tpusim.serving.serve import DEFAULT_ENGINE
from tpusim.simulation.arguments import check_slice


@checked_call
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpace:
    """Slices, meshes and values of keys, in all combinations.

    slices: of each replica.
    axes: of meshes: each factorisation of a slice's devices over them is one.
    meshes: to try in place of `axes`, on all slices with as many devices.
    most: axis -> largest size.
    vary: key of a section [serving] -> values to try, such as `max_num_seqs`, `kv_dtype`,
        `expert_parallel` or `replicas`.
    plan, engine: what all servers share; None for the defaults.
    options: of `ts.serve`, which all servers share.

    Raise PlanError for keys that no server has, and for a space without slices or meshes.
    """

    slices: Sequence[Slice | str]
    axes: Sequence[str] = ()
    meshes: Sequence[Mapping[str, int]] = ()
    most: Mapping[str, int] = field(default_factory=dict)
    vary: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    plan: ServingPlan = field(default_factory=ServingPlan)
    engine: Engine | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not is_list(self.slices) or not self.slices:
            raise PlanError(
                f'search.slices is {shown(self.slices)}; write a list, such as ["v6e-4", "v6e-8"]'
            )
        order = "write ServerSpace(slices=[...])"
        object.__setattr__(self, "slices", tuple(check_slice(each, order) for each in self.slices))
        if bool(self.axes) == bool(self.meshes):
            given = "both given" if self.axes else "both missing"
            raise PlanError(f"search.axes and search.meshes are {given}; write one of them")
        for axis in (*self.axes, *self.most):
            if axis not in SERVING_AXES:
                raise PlanError(
                    f"search.axes has {axis!r}, which no server has; {nearest(axis, SERVING_AXES)}"
                )
        for key, values in self.vary.items():
            if not is_list(values) or not values:
                raise PlanError(
                    f"search.vary.{key} is {shown(values)}; write a list of values to try"
                )
        if "mesh" in self.vary:
            raise PlanError("search.vary has mesh; write search.axes or search.meshes instead")

    def __len__(self) -> int:
        meshes = sum(len(self.meshes_of(pod)) for pod in self.pods)
        return meshes * prod(len(values) for values in self.vary.values())

    @property
    def pods(self) -> tuple[Slice, ...]:
        """The slices."""
        return self.slices  # type: ignore[return-value]

    @property
    def names(self) -> tuple[str, ...]:
        """The axes of the meshes."""
        return tuple(self.axes) or tuple(dict.fromkeys(a for mesh in self.meshes for a in mesh))

    def meshes_of(self, pod: Slice) -> list[dict[str, int]]:
        """Return the meshes of a slice."""
        if self.meshes:
            return [dict(mesh) for mesh in self.meshes if prod(mesh.values()) == pod.devices]
        sizes = factored(pod.devices, tuple(self.most.get(axis, pod.devices) for axis in self.axes))
        pairs = (zip(self.axes, each, strict=True) for each in sizes)
        meshes = ({axis: size for axis, size in each if size > 1} for each in pairs)
        return [mesh or {self.axes[-1]: 1} for mesh in meshes]

    def configurations(self, left_out: Counter[str]) -> Iterator[Configuration]:
        """Yield the servers; count in `left_out` combinations that are none, by reason."""
        first = self.pods[0]
        engine = self.engine or Engine.of(DEFAULT_ENGINE, chip=first.chip.generation)
        base = Configuration(pod=first, plan=self.plan, engine=engine, **self.options)
        choices = [dict(zip(self.vary, each, strict=True)) for each in product(*self.vary.values())]
        for pod in self.pods:
            there = base.on(pod) if len(self.pods) > 1 else base
            for mesh, keys in product(self.meshes_of(pod), choices):
                try:
                    yield there.changed({"mesh": mesh, **keys})
                except TpusimError as error:
                    left_out[str(error)] += 1
