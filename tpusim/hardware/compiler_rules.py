"""What the TPU compiler and JAX do for the chips of a generation.

The rules are data: the section `[compiler]` of the chip's file.
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

from tpusim.base.errors import HardwareError, nearest
from tpusim.hardware.chip_fields import BYTES, COUNTED, FACTOR, OR_ZERO, WORD, check_fields

MeshOrder = Literal["torus", "hosts", "small hosts", "small rings"]

_NAMED = {"unit": WORD}
_AMONG: dict[str, tuple[str, ...]] = {
    "mesh_order": get_args(MeshOrder),
    **dict.fromkeys(("pair_gathers", "pair_reductions", "pair_scatters"), ("", "nd", "ring")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerRules:
    """What the TPU compiler and JAX do for a generation, by what they were seen to do.

    The defaults are what a chip is taken to have whose file has no section `[compiler]`; results
    that depend on one say so.

    mesh_order: how JAX lays a mesh on a slice: along the dimensions of the `torus`; in the order of
        `jax.devices()`, of which eight go round a host (`hosts`); on slices of one or a few hosts
        so, and else along the torus (`small hosts`); or as one ring on small slices (`small
        rings`).
    on_chip_room: bytes of CMEM or VMEM in which a program keeps buffers between operations.
    cut_examples: examples of a device up to which images are cut into the batch of convolutions.
    image_rows: examples that an image takes in memory at least, as a tile has so many rows.
    compile_time: time of a compilation, over that of the same program for v4.
    libtpu_name: libtpu's name of the generation; empty for the chip's own.
    libtpu_config: libtpu's name of the chip's configuration, where it asks for one.
    pair_gathers, pair_reductions, pair_scatters: algorithm (`nd` or `ring`) of a synchronous
        all-gather, all-reduce or reduce-scatter over two chips along each of several dimensions of
        the torus; empty for the one that is usual.
    short_ring: bytes up to which an all-reduce over eight devices, on as many chips, is one ring.
    asynchronous_permutes: chips of the largest slice on which permutes of plain programs are
        asynchronous; None if they are on all.
    """

    mesh_order: MeshOrder = field(default="torus", metadata=_NAMED)
    on_chip_room: float = field(default=0.0, metadata=BYTES | OR_ZERO)
    cut_examples: int = field(default=0, metadata=COUNTED | OR_ZERO)
    image_rows: int = field(default=1, metadata=COUNTED)
    compile_time: float = field(default=1.0, metadata={"unit": FACTOR})
    libtpu_name: str = field(default="", metadata=_NAMED)
    libtpu_config: str = field(default="", metadata=_NAMED)
    pair_gathers: str = field(default="", metadata=_NAMED)
    pair_reductions: str = field(default="", metadata=_NAMED)
    pair_scatters: str = field(default="", metadata=_NAMED)
    short_ring: float = field(default=0.0, metadata=BYTES | OR_ZERO)
    asynchronous_permutes: int | None = field(default=None, metadata=COUNTED | OR_ZERO)

    def __post_init__(self) -> None:
        check_fields(self, "compiler")
        for name, valid in _AMONG.items():
            value = getattr(self, name)
            if value not in valid:
                raise HardwareError(
                    f"compiler: {name} is {value!r}; {nearest(str(value), filter(None, valid))}"
                )
