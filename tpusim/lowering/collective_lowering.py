"""Lowerings of collectives: the vocabulary of `collectives_by_generation.toml`."""

from dataclasses import dataclass, field
from enum import StrEnum

from tpusim.lowering.device_groups import DeviceGroup
from tpusim.program import Mode


class Carrier(StrEnum):
    """Work of the core beside which an asynchronous gather makes progress."""

    MATMUL = "matmul"
    ATTENTION = "attention"


@dataclass(frozen=True, slots=True)
class Overlap:
    """Overlap of asynchronous weight gathers with work of the core.

    prefetch_depth: gathers that are ahead of the matmul that reads them.
    carried_by: work beside which a gather makes progress. A grouped matmul never carries one.
    needs_carrier: a gather before which no other was started is synchronous unless a matmul comes
        before its reader, as no prefetch crosses the boundary of a loop's body.
    outside_layers: gathers outside of the loop over layers (embedding and head) overlap too.
    """

    prefetch_depth: int = 1
    carried_by: frozenset[Carrier] = frozenset({Carrier.MATMUL})
    needs_carrier: bool = True
    outside_layers: bool = False

    @property
    def beside_attention(self) -> bool:
        """True if a gather makes progress beside an attention kernel."""
        return Carrier.ATTENTION in self.carried_by


EVERYTHING = frozenset(Carrier)

LAYER_AT_ONCE = Overlap(
    prefetch_depth=64, carried_by=EVERYTHING, needs_carrier=False, outside_layers=True
)
"""All gathers of a layer start at its beginning, as on the SparseCore: 7 of the 9 compiled
plans that were read, on 7x 2x2x2 to 4x4x4; with a `tensor` axis, those after an all-reduce follow
it. The head's is asynchronous too, in 40 of 40."""

OBSERVED = "observed"
"""The name that switches off all passes and table lines that compiled programs alone showed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """The mode and algorithm of each kind of collective over one group of devices.

    name: of this behaviour, unique in the table.
    shown_by: the compiled program that shows it.
    seen_on: generation and style of the programs in which it was seen, such as `v5p maxtext`; in
        any other, a result notes that it is borrowed.
    gather: mode of weight gathers.
    gather_algorithm: their algorithm; empty for an all-gather.
    reduce: mode of gradient reductions.
    reduce_algorithm: their algorithm; empty for a fused reduce-scatter.
    twice: mode of gathers that several matmuls read, where the others are collective matmuls.
    overlap: the work that asynchronous gathers overlap.
    regather_after: matmuls after which a gathered copy is gathered again rather than kept.
    major_algorithm: of reductions that scatter another dimension than the last; empty for
        `reduce_algorithm`.
    only_mlp: only gathers of MLP weights are asynchronous.
    keys_algorithm: of the sums of gradients of keys that were gathered for an attention kernel.
    offloaded: True if the SparseCore reduces and gathers: a gradient over all its axes at once (see
        `reduce_at_once`), an activation once, however far apart its uses are, and both beside the
        core.
    carries: True if matmuls carry gathers of activations for the backward pass; see
        `carry_gathers`.
    activations: the activation collectives that become collective matmuls: where it pays (`rule`,
        see `fuse_collectives.fusion_pays`), wherever one can be (`always`), or none (`never`).
    fuses_epilogue: True if a collective matmul takes an epilogue. Compiled ones do not (plain
        language models of D=512 to 2048, 16-way on v5p 2x2x4): activations and residual sums follow
        them.
    """

    name: str
    shown_by: str
    seen_on: tuple[str, ...] = ()
    gather: Mode
    gather_algorithm: str = ""
    reduce: Mode
    reduce_algorithm: str = ""
    twice: Mode = Mode.SYNC
    overlap: Overlap = field(default_factory=Overlap)
    regather_after: int | None = None
    major_algorithm: str = ""
    only_mlp: bool = False
    keys_algorithm: str = "all-reduce"
    offloaded: bool = False
    carries: bool = False
    activations: str = "rule"
    fuses_epilogue: bool = False

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def gathers_in_turn(self) -> bool:
        """True if each gather of weights starts when the one before is done (`prefetch`)."""
        alone = self.gather is Mode.ASYNC and not self.only_mlp
        return alone and self.overlap.prefetch_depth == 1

    @property
    def gathers_at_once(self) -> bool:
        """True if all gathers of a body start with it, and gradients are reduced beside it."""
        return self.offloaded and self.overlap == LAYER_AT_ONCE


@dataclass(frozen=True, slots=True)
class TableLine:
    """A lowering, and the groups that it holds for; None stands for any.

    style: whose programs, `plain` JAX or `maxtext`.
    dimensions: torus dimensions that the group spans.
    whole: True if the group is the whole slice.
    tiled: True if weights are sharded over all axes of the mesh.
    min_size, max_size: devices of the group.
    slices: slices that the program runs on.
    observed: a compiled program alone showed it; it can be switched off.
    """

    lowering: Lowering
    style: str | None = None
    dimensions: int | None = None
    whole: bool | None = None
    tiled: bool | None = None
    min_size: int = 1
    max_size: int | None = None
    slices: int | None = None
    observed: bool = False

    def holds(self, style: str, group: DeviceGroup) -> bool:
        """Return True if the line applies to a group in programs of a style."""
        return (
            self.style in (None, style)
            and self.dimensions in (None, group.dimensions)
            and self.whole in (None, group.whole)
            and self.tiled in (None, group.tiled)
            and self.slices in (None, group.slices)
            and self.min_size <= group.size
            and (self.max_size is None or group.size <= self.max_size)
        )

    def __str__(self) -> str:
        """Name of the lowering, with the groups that it holds for: `rings (plain, at most 16)`."""
        asked = [
            self.style or "",
            f"{self.dimensions} torus dimensions" if self.dimensions else "",
            "whole slice" if self.whole else "",
            "tiled weights" if self.tiled else "",
            f"at least {self.min_size} devices" if self.min_size > 1 else "",
            f"at most {self.max_size} devices" if self.max_size else "",
            "one slice" if self.slices == 1 else "",
            "observed" if self.observed else "",
        ]
        return f"{self.lowering.name} ({', '.join(filter(None, asked)) or 'any group'})"


IDEAL = Lowering(
    name="ideal",
    shown_by="a perfect compiler: nothing waits that need not",
    gather=Mode.ASYNC,
    gather_algorithm="nd",
    reduce=Mode.ASYNC,
    reduce_algorithm="nd",
    overlap=Overlap(carried_by=EVERYTHING, needs_carrier=False, outside_layers=True),
    keys_algorithm="",
    activations="always",
    fuses_epilogue=True,
)
