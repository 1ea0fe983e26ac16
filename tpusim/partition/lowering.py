"""How collectives are carried out: the compiler's habits, as a table.

Each line says in which program it was seen. They are observations of compiled programs (libtpu
0.0.42.1 with jax 0.10.2; MaxText of 2025 with libtpu 0.0.11.1), not of hardware. Lines are tried
from the top; where programs disagree, the style decides.
"""

from dataclasses import dataclass, replace

from tpusim.program import Mode

MIB = 2.0**20


@dataclass(frozen=True, slots=True)
class Group:
    """The devices of a collective, as the compiler's choice depends on them.

    dimensions: torus dimensions that the group spans. whole: it spans the whole slice.
    ring: it is one whole dimension (programs for v5e 4x4 have rings without a wraparound).
    bandwidth: B/s of a bidirectional ring, nominal. slices: that the program runs on.
    """

    size: int
    dimensions: int
    whole: bool
    ring: bool
    bandwidth: float
    slices: int = 1


@dataclass(frozen=True, slots=True)
class Lowering:
    """What becomes of each kind of collective.

    gather, gather_algorithm: weight gathers; an empty algorithm is an all-gather.
    reduce, reduce_algorithm: gradient reductions, likewise.
    twice: gathers that several matmuls use, where the others are rings.
    first_sync: no prefetch crosses the boundary of a loop's body, so a gather is synchronous where
        no product of the body comes before its first reader: mostly the first.
    outside_sync: gathers outside of the loop over layers are synchronous (embedding and head).
    kernels_carry: whether a transfer goes on beside an attention kernel.
    regather_after: matmuls after which a gathered copy is gathered again rather than kept.
    major_algorithm: of reductions that scatter another dimension than the last; empty for theirs.
    only_mlp: gathers of the MLP's weights alone are asynchronous.
    keys_algorithm: of the sums of gradients of keys that were gathered for a kernel.
    rings: whether activation collectives become collective matmuls where the rule of
        `wants_ring` says so (`rule`), or wherever one can be woven in (`always`).
    rings_fuse: whether a ring's matmul takes an epilogue. Compiled ones do not (plain language
        models of D=512 to 2048, 16-way on v5p 2x2x4): activations and residual sums follow them.
    shown_by: the program that shows it.
    """

    gather: Mode
    reduce: Mode
    gather_algorithm: str = ""
    reduce_algorithm: str = ""
    twice: Mode = Mode.SYNC
    first_sync: bool = True
    outside_sync: bool = True
    kernels_carry: bool = False
    regather_after: int | None = None
    major_algorithm: str = ""
    only_mlp: bool = False
    keys_algorithm: str = "all-reduce"
    rings: str = "rule"
    rings_fuse: bool = False
    shown_by: str = ""


_SYNC, _ASYNC, _RING = Mode.SYNC, Mode.ASYNC, Mode.RING

IDEAL = Lowering(
    _ASYNC, _ASYNC, "nd", "nd", first_sync=False, outside_sync=False, kernels_carry=True,
    keys_algorithm="", rings="always", rings_fuse=True,
    shown_by="what a perfect compiler would do: nothing waits that need not",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Line:
    """A lowering, and the programs that it holds for; None stands for any."""

    lowering: Lowering
    generations: tuple[str, ...] | None = None
    style: str | None = None
    dimensions: int | None = None
    whole: bool | None = None
    max_group: int | None = None
    min_group: int = 1
    slices: int | None = None

    def holds(self, generation: str, style: str, group: Group) -> bool:
        asked = (
            (self.generations is None or generation in self.generations),
            (self.style in (None, style)),
            (self.dimensions in (None, group.dimensions)),
            (self.whole in (None, group.whole)),
            (self.max_group is None or group.size <= self.max_group),
            (self.min_group <= group.size),
            (self.slices in (None, group.slices)),
        )
        return all(asked)


_TABLE = (
    _Line(
        Lowering(
            _RING, _RING, twice=_ASYNC, kernels_carry=True, keys_algorithm="",
            shown_by="plain 8B-like model on 7x 2x2x2, 16-way, and layers of experts there, fsdp 4 "
            "x expert 4: rings over 16 and over 4, and what is used twice in the backward pass is "
            "gathered on the SparseCore",
        ),
        ("7x",), "plain", max_group=16,
    ),
    _Line(
        Lowering(
            _ASYNC, _ASYNC, gather_algorithm="all-reduce", reduce_algorithm="all-reduce",
            kernels_carry=True, keys_algorithm="",
            shown_by="plain scanned language model, 7x 4x8x8, groups over three dimensions: "
            "gathers as all-reduces, asynchronous on the SparseCore",
        ),
        ("7x",), "plain", dimensions=3,
    ),
    _Line(
        Lowering(
            _ASYNC, _ASYNC, kernels_carry=True, keys_algorithm="",
            shown_by="7x 2x2x1: all-gather, reduce-scatter and all-reduce are calls on the "
            "SparseCore (call-start, call-done)",
        ),
        ("7x",),
    ),
    _Line(
        Lowering(
            _RING, _RING, twice=_ASYNC,
            shown_by="language models compiled with MaxText's flags (libtpu 0.0.42.1): 1.2B, "
            "16-way on v5p 2x2x4, and 8B on v6e 2x4 and 4x4: the rings of plain programs, but what "
            "is used twice in the backward pass is gathered beside matmuls",
        ),
        ("v5p", "v6e"), "maxtext", whole=True, max_group=16,
    ),
    _Line(
        Lowering(
            _ASYNC, _SYNC, gather_algorithm="nd", reduce_algorithm="all-reduce",
            shown_by="MaxText 32B and 16B on v5e 16x16: gathers beside matmuls, prefetch depth "
            "one, gradients by synchronous all-reduce; plain 32B and 7B models there: gathers by "
            "the network router, but where the sharded dimension is not the leading one",
        ),
        ("v5e",), "maxtext", whole=True, min_group=32,
    ),
    _Line(
        Lowering(
            _ASYNC, _SYNC, reduce_algorithm="all-reduce",
            shown_by="MaxText 7B on v6e 16x16, 32B on v5p 4x4x4: the same; 175B with MaxText's "
            "flags on v6e 16x16: gathers as one ring (libtpu 0.0.42.1 and 0.0.11.1)",
        ),
        style="maxtext", whole=True,
    ),
    _Line(
        Lowering(
            _ASYNC, _SYNC,
            shown_by="the same MaxText programs for the gathers; a group on part of the torus "
            "gets the fused reduce-scatter",
        ),
        style="maxtext",
    ),
    _Line(
        Lowering(
            _RING, _RING,
            shown_by="plain language model, 16-way on v6e 4x4, v4 and v5p 2x2x4: weight "
            "gathers and gradient reductions are rings in the matmuls",
        ),
        ("v4", "v5p", "v6e"), "plain", whole=True, max_group=16,
    ),
    _Line(
        Lowering(
            _RING, _RING,
            shown_by="plain model of D=1024, 4-way on v5e 2x2: the same rings, unrolled",
        ),
        ("v5e",), "plain", whole=True, max_group=4,
    ),
    _Line(
        Lowering(
            _RING, _RING, twice=_ASYNC,
            shown_by="plain 7B model and layers of experts on one slice of v5e 4x4, 16-way: rings, "
            "and what is used twice in the backward pass is gathered beside matmuls",
        ),
        ("v5e",), "plain", whole=True, max_group=16, slices=1,
    ),
    _Line(
        Lowering(
            _ASYNC, _SYNC, gather_algorithm="nd", reduce_algorithm="all-reduce",
            shown_by="plain 32B-like model on v5e 16x16, and one of 16 ways on v5e 4x4 (one of two "
            "slices): as MaxText's",
        ),
        ("v5e",), "plain", whole=True,
    ),
    _Line(
        Lowering(
            _ASYNC, _SYNC,
            shown_by="plain layers of 8 experts (embed 4096, mlp 14336) on v5e 4x4, fsdp 4 x "
            "expert 4: gathers over the 4 beside matmuls, prefetch depth one, also across the "
            "synchronous all-to-alls; gradients by synchronous fused reduce-scatter",
        ),
        ("v5e",), "plain",
    ),
    _Line(
        Lowering(
            _SYNC, _SYNC, reduce_algorithm="all-reduce",
            shown_by="plain scanned language models on v6e 16x16 (8B, 175B): all gathers "
            "synchronous, as one ring",
        ),
        ("v6e",), "plain", whole=True,
    ),
    _Line(
        Lowering(
            _SYNC, _SYNC, reduce_algorithm="all-reduce",
            shown_by="the same layers of experts on v6e 16x16, fsdp 32 x expert 8: gathers and "
            "all-reduces over the 32, synchronous (over 4 on v6e 4x4 and 16 on v5p 4x4x4: fused "
            "reduce-scatters)",
        ),
        ("v6e",), "plain", min_group=32,
    ),
    _Line(
        Lowering(
            _SYNC, _SYNC, gather_algorithm="all-reduce", reduce_algorithm="all-reduce",
            shown_by="plain scanned language model, 64- to 512-way, v4 4x4x4, v5p 4x4x4 and "
            "8x8x8: gathers as all-reduces of a zero-padded buffer",
        ),
        ("v4", "v5p"), "plain", dimensions=3,
    ),
    _Line(
        Lowering(
            _SYNC, _SYNC, regather_after=20,
            shown_by="480-billion-parameter encoder, v4 8x16x16, 256 on a plane x 8: plain "
            "gathers, fused reduce-scatter; wq and wk are gathered twice in the backward pass, "
            "wv, wo and the MLP's once",
        ),
    ),
)  # fmt: skip


def lowering_for(name: str, generation: str, style: str, group: Group) -> Lowering:
    """The lowering of the collectives over one group."""
    if name == "ideal":
        return IDEAL
    return next(line.lowering for line in _TABLE if line.holds(generation, style, group))


def in_trips(low: Lowering) -> Lowering:
    """The lowering of the same collectives in the trips of a circular pipeline.

    There are no rings: whole slices of v6e 2x2 as stages, which have them without a pipeline,
    gather and reduce synchronously. Reductions that scatter the last dimension (of wo and the MLP's
    second matrix) are fused; those of other weights are all-reduces, of which the addition to the
    accumulator takes its part. With MaxText's flags gathers of the MLP's weights are asynchronous,
    each beside the matmuls before its own, those of attention synchronous (4 stages x fsdp 4 on
    v6e 4x4, with these flags and without; 2 stages x fsdp 4 on two slices of v6e 2x2).
    """
    if low.reduce is Mode.ASYNC:
        return low
    gather = low.twice if low.gather is Mode.RING else low.gather
    return replace(
        low, gather=gather, reduce=Mode.SYNC, major_algorithm="all-reduce", only_mlp=True,
        first_sync=gather is not Mode.ASYNC,
    )  # fmt: skip


SMALL_GRADIENT = 4 * MIB
"""Gradients up to here are merged into one all-reduce at the end of the body (480B: wk, wv and the
norms in one of 1 MiB)."""

COMBINED = 16 * MIB
"""All-reduces that follow each other are merged while they are smaller than this (480B: K and V,
2 x 2 MiB)."""

LARGEST_RING_WEIGHT = 256 * MIB
"""Collective matmuls were seen with gathered weights of up to 128 MiB on a device (480B: wq, wo),
and not with 512 MiB (its MLP matrices); the bound lies between."""


def wants_ring(group: Group, nbytes: float, flops: float, peak: float, weight_bytes: float) -> bool:
    """Whether the compiler weaves an activation collective into the matmul beside it.

    A ring of n takes the longer of compute C and transfer T, plus a prologue and an epilogue of T/n
    each; it is chosen when that beats C + T, so when min(C, T) > 2 T / n. This agrees with all 16
    einsums seen on v4, v5e, v5p, v6e and 7x (axes of 2 to 16, F from 512 to 32768), given that the
    axis is a physical ring of at least 4.
    """
    if not group.ring or group.size < 4 or weight_bytes > LARGEST_RING_WEIGHT:
        return False
    compute, transfer = flops / peak, nbytes / group.bandwidth
    return min(compute, transfer) > 2 * transfer / group.size
