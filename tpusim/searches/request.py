"""A search as a run file asks for it: its slices, its space and how to search."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tpusim.base.errors import PlanError
from tpusim.hardware import Slice, parse_slice
from tpusim.models import Architecture
from tpusim.plan import Plan
from tpusim.searches.best import PROVED
from tpusim.searches.plan_space import PlanSpace
from tpusim.searches.slices import slices_of
from tpusim.simulation.advice.decisions import tuned_values

HOW = ("objective", "top", "at_most", "method", "starts", "seed")
"""The arguments of `search` besides model, space and what simulates."""


@dataclass(frozen=True, slots=True)
class AskedSearch:
    """What a section [search] asks for: `ts.search(model, asked.space, **asked.how)`.

    space: of the file's model.
    how: further arguments of `search`, by name: the objective, limits, the number of plans.
    """

    space: PlanSpace
    how: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """The keys of [search].

    slices: slices to choose from (`v4:8x16x16` or `v4-4096`); the slice of `[slice]` if neither
        this nor `generations` is given.
    generations: chips whose legal slices are tried instead. Each shape is tried in one order of its
        dimensions.
    chips: least and most chips of all slices together; needed with `generations`.
    num_slices: numbers of slices, with `generations`; one if not given.
    twisted: also twisted tori, with `generations`.
    axes: mesh axes; each factorisation of a slice's devices over them is a mesh. Axes named
        `dcn_...` divide the slices instead.
    meshes: meshes to try, instead of `axes`, on all slices with as many devices.
    most: axis -> largest size.
    vary: plan key, flat or grouped -> values to try.
    tune: also vary what advice tries without another mesh: saved tensors, attention
        kernels, microbatches, loss tiles, schedules, experts. That is a large space; search it with
        `method = "local"`.
    objective: `step_time`, `chip_time` (per token), `cost` (USD per token), `energy` (J per token),
        `time_to_train`, `cost_to_train`; or two for a Pareto front. The last two need a section
        [train]. Costs are on demand; `chip_time` is one over tokens per second and chip.
    top: plans to find. A front has as many plans as it has.
    at_most: limits on objectives, on `chips`, and on `hbm` (peak over usable HBM).
    method: `proved`, or `local` for a space that is too large to bound. A local search proves
        nothing.
    starts: descents of a local search.
    seed: seed of a local search.
    """

    slices: Sequence[str] = ()
    generations: Sequence[str] = ()
    chips: Sequence[int] = ()
    num_slices: Sequence[int] = ()
    twisted: bool = False
    axes: Sequence[str] = ()
    meshes: Sequence[Mapping[str, int]] = ()
    most: Mapping[str, int] = field(default_factory=dict)
    vary: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    tune: bool = False
    objective: str | Sequence[str] = "step_time"
    top: int = 1
    at_most: Mapping[str, float] = field(default_factory=dict)
    method: str = PROVED
    starts: int = 4
    seed: int = 0

    def asked(self, model: Architecture, base: Plan, pod: Slice | None) -> "AskedSearch":
        """Return the space and the other arguments of `search`.

        base: the plan that the space varies.
        pod: the slice of [slice], if there is one.

        Raise as `PlanSpace` and `slices_of` do.
        """
        fields = {name: getattr(self, name) for name in ("axes", "meshes", "most")}
        vary = {**(tuned_values(model, base) if self.tune else {}), **self.vary}
        space = PlanSpace(base=base, slices=self._slices(pod), vary=vary, **fields).of(model)
        return AskedSearch(space, {name: getattr(self, name) for name in HOW})

    def _slices(self, pod: Slice | None) -> Sequence[Slice]:
        given = [bool(self.slices), bool(self.generations), pod is not None]
        if sum(given) != 1:
            raise PlanError(
                "a search takes its slices from one of search.slices, search.generations and "
                f"[slice]; {'write one' if not any(given) else 'leave the others out'}"
            )
        if pod is not None:
            return [pod]
        if self.slices:
            return [parse_slice(name) for name in self.slices]
        if len(self.chips) != 2:
            raise PlanError(
                f"search.chips is {list(self.chips)}; write the least and the most chips of a "
                "slice, such as [2048, 6144]"
            )
        least, most = self.chips
        counts = self.num_slices or (1,)
        return slices_of(self.generations, least, most, twisted=self.twisted, num_slices=counts)
