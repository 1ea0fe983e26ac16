"""The constants of kind `fitted` in `hardware_specs/`, in the groups that are fitted together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tpusim.hardware import Chip, Slice, load_chip, load_entries
from tpusim.runfile import SimulationRun
from tpusim.validation import RunChange


@dataclass(frozen=True)
class Constant:
    """A fitted constant.

    name: of the field of `CostConstants`.
    values: at which predictions are made, in SI; the first and the last are its bounds.
    neutral: the value of a cost model without it.
    along: other constants that move with it, each a multiple of it.
    """

    name: str
    values: tuple[float, ...]
    neutral: float
    along: Mapping[str, float] = field(default_factory=dict)

    def settings(self, value: float) -> dict[str, float]:
        """Return the fields that a value sets."""
        return {self.name: value} | {name: share * value for name, share in self.along.items()}


@dataclass(frozen=True)
class Group:
    """Constants that are fitted together, to the same observations.

    title: of the group.
    chips: whose files call them fitted, with one value for all.
    constants: one or two.
    pairs: True if they are fitted to ratios of two runs that differ in the number of slices.
    scale: the error at which the loss turns linear. Releases of one software move runs by 2 to 7 %;
        in ratios of two runs of one release that cancels.
    """

    title: str
    chips: tuple[str, ...]
    constants: tuple[Constant, ...]
    pairs: bool = False
    scale: float = 0.05

    @property
    def catalogue(self) -> dict[str, float]:
        """The values in `hardware_specs/`. Raise ValueError if the chips have several."""
        found: dict[str, float] = {}
        for each in self.constants:
            values = {getattr(load_chip(chip).costs, each.name) for chip in self.chips}
            if len(values) > 1:
                raise ValueError(f"{each.name} has several values on {', '.join(self.chips)}")
            found[each.name] = values.pop()
        return found

    def change(self, values: Mapping[str, float]) -> RunChange:
        """Return the change that gives these chips other values."""
        changed = {
            name: each_value
            for each in self.constants
            for name, each_value in each.settings(values[each.name]).items()
        }
        return with_constants(dict.fromkeys(self.chips, changed))


def with_constants(changed: Mapping[str, Mapping[str, float]]) -> RunChange:
    """Return the change of the setups of runs that gives chips other constants, by chip."""

    def change(setup: SimulationRun) -> SimulationRun:
        values = changed.get(setup.pod.chip.name, {})
        return replace(setup, pod=on_chip(setup.pod, setup.pod.chip.replace(**values)))

    return change


def on_chip(pod: Slice, chip: Chip) -> Slice:
    """Return the same slices of another chip."""
    return Slice(chip, str(pod.topology), pod.num_slices, False, pod.dcn_oversubscription)


ALL_CHIPS = ("v2", "v3", "v4", "v5e", "v5p", "v6e", "7x")


def _attention(*values: float) -> Constant:
    """Return the efficiency of attention; that of the backward pass moves with it."""
    along = {"attention_efficiency_backward": 1.0}
    return Constant("attention_efficiency_forward", values, 1.0, along)


WHOLE_RUNS = (
    Group(
        "matmuls in steps on v6e, and chips that wait for the slowest",
        ("v6e",),
        (
            Constant("matmul_in_step", (0.8, 0.84, 0.88, 0.92, 0.955, 1.0), 1.0),
            Constant("chip_jitter", (0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06), 0.0),
        ),
    ),
    Group(
        "matmuls and attention on 7x, and rows picked by their index",
        ("7x",),
        (
            Constant("matmul_in_step", (0.8, 0.87, 0.9, 0.94, 0.97, 1.0), 1.0),
            Constant("gather_efficiency", (0.25, 0.3, 0.34, 0.38, 0.42, 0.5, 0.7, 1.0), 1.0),
            _attention(1.0, 1.1, 1.25, 1.4, 1.6),
        ),
    ),
    Group(
        "gradients of labels added by index",
        ("v5p", "v6e"),
        (Constant("scatter_element", (0.0, 0.25e-6, 0.5e-6, 0.75e-6, 1e-6, 1.5e-6, 2e-6), 0.0),),
    ),
    Group(
        "slices that wait for each other",
        ALL_CHIPS,
        (Constant("slice_jitter", (0.0, 0.03, 0.045, 0.06, 0.1), 0.0),),
        pairs=True,
        scale=0.01,
    ),
    Group(
        "the host between two steps",
        ("v4",),
        (Constant("turnaround", (0.0, 0.01, 0.02, 0.033, 0.04, 0.05, 0.06), 0.0),),
    ),
)
"""Fitted to whole runs: seven constants."""

ESTIMATED: Mapping[str, tuple[str, ...]] = {
    "op_launch": ("v4", "v5e", "v5p", "v6e"),
    "matmul_overlap": ("v4", "v5e", "v5p", "v6e", "7x"),
    "vector_launch": ("v4", "v5e", "v5p", "v6e"),
    "collective_launch": ("7x",),
    "group_fill": ("7x",),
    "lane_crossing": ("7x",),
    "epilogue_overlap": ("v6e",),
    "matmul_overlap_in_step": ("v6e",),
    "kernel_step": ("v6e",),
    "attention_efficiency_forward": ("v6e",),
    "attention_efficiency_backward": ("v6e",),
}
"""Fitted to estimates of the compiler, microbenchmarks and profiles, by the chips that say so."""

PROFILED: Mapping[str, tuple[str, ...]] = {
    "ici_efficiency": ("v2",),
    "hbm_efficiency": ("v2",),
    "hbm_read": ("v2",),
    "matmul_efficiency": ("v2",),
    "matmul_overlap": ("v2",),
    "epilogue_overlap": ("v2",),
}
"""Fitted to profiles of single operations, by the chips whose files say so."""


def fitted_in_catalogue(chips: Sequence[str] = ALL_CHIPS) -> set[tuple[str, str]]:
    """Return chip and name of each constant that a chip's file calls fitted."""
    return {
        (chip, name.removeprefix("costs."))
        for chip in chips
        for name, entry in load_entries(chip).items()
        if name.startswith("costs.") and entry.kind == "fitted"
    }


def listed() -> set[tuple[str, str]]:
    """Return chip and name of each constant that is listed here."""
    whole = {
        (chip, c.name) for group in WHOLE_RUNS for chip in group.chips for c in group.constants
    }
    alone = (*ESTIMATED.items(), *PROFILED.items())
    return whole | {(chip, name) for name, chips in alone for chip in chips}
