"""Compile the convolutions of `shapes.py` for one device of each chip, without a TPU.

python compile.py FOLDER --chips v4,v5e     compile each into a file; those there are kept
python compile.py FOLDER --table            print the cycles of those in the folder as a table
"""

import argparse
import csv
import hashlib
import sys
from pathlib import Path

from shapes import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Shape, shapes

from tpusim.compiler.hlo.attributes import called_computations, estimated_cycles
from tpusim.compiler.hlo.module import HloModule, Instruction
from tpusim.compiler.hlo.parser_process import HloParser
from tpusim.compiler.hlo.read import read_module
from tpusim.hardware import load_chip

SLICES = {
    "v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "7x": "7x:2x2x1"
}  # fmt: skip
LIBTPU = "0.0.42.1"
"""The compiler that made the programs."""

FROM_HBM = {"xla_msa_enable": "false"}
"""Operands are read by the convolution itself, not by a copy to VMEM before it, which has no cycles
of its own."""

COLUMNS = (
    *("chip", "kind", "family", "batch", "input", "output", "window", "stride", "dilation"),
    *("groups", "in_channels", "out_channels", "padding", "transposed", "held_out", "dtype"),
    *("cycles", "other_cycles", "clock_hz", "libtpu"),
)
HEADER = (
    "Estimated cycles of the TPU compiler for one convolution each: bf16, channels last, layouts "
    "free, all arrays in HBM.",
    "cycles: of the fusion that has the convolution. other_cycles: of what the program runs beside "
    "it, rearrangements of operands and result that a network does once for many layers.",
    "held_out: half of the shapes, by a hash; the cost model is fitted to the others. What the "
    "compiler believes, not measurements. Made by experiments/convolutions/compile.py.",
)


def compiled(shape: Shape, kind: str, chip: str) -> str:
    """Return the HLO of one convolution or gradient, with free layouts."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.experimental.layout import Format, Layout
    from jax.sharding import SingleDeviceSharding

    from tpusim.compiler.topologies import as_slice, devices_of

    sides = "DHW"[-len(shape.size) :]
    names = (f"N{sides}C", f"{sides}IO", f"N{sides}C")
    strides = (shape.stride,) * len(shape.size)

    def forward(x, w):
        if shape.transposed:
            return lax.conv_transpose(x, w, strides, shape.padding, dimension_numbers=names)
        return lax.conv_general_dilated(
            x, w, strides, shape.padding, rhs_dilation=(shape.dilation,) * len(shape.size),
            dimension_numbers=names, feature_group_count=shape.groups,
        )  # fmt: skip

    def image_gradient(g, w):
        return jax.linear_transpose(lambda x: forward(x, w), image)(g)[0]

    def kernel_gradient(g, x):
        return jax.linear_transpose(lambda w: forward(x, w), kernel)(g)[0]

    def array(*sizes):
        return jax.ShapeDtypeStruct(sizes, jnp.bfloat16)

    image = array(shape.batch, *shape.size, shape.in_channels)
    kernel = array(*shape.window, shape.in_channels // shape.groups, shape.out_channels)
    result = jax.eval_shape(forward, image, kernel)
    step, given = {
        FORWARD: (forward, (image, kernel)),
        INPUT_GRADIENT: (image_gradient, (result, kernel)),
        WEIGHT_GRADIENT: (kernel_gradient, (result, image)),
    }[kind]
    free = Format(Layout.AUTO, SingleDeviceSharding(devices_of(as_slice(SLICES[chip]))[0]))
    jitted = jax.jit(step, in_shardings=(free, free), out_shardings=free)
    return jitted.lower(*given).compile(compiler_options=FROM_HBM).as_text()


def cycles_of(module: HloModule) -> tuple[int, int]:
    """Return the cycles of the fusions with a convolution, and of all others."""
    with_it = other = 0
    for instruction in module.main.instructions:
        cycles = estimated_cycles(instruction) or 0
        if convolves(module, instruction):
            with_it += cycles
        else:
            other += cycles
    return with_it, other


def convolves(module: HloModule, instruction: Instruction) -> bool:
    """Return True for a convolution, and for what calls a computation that has one."""
    bodies = called_computations(module, instruction)
    return instruction.opcode == "convolution" or any(
        convolves(module, inner) for body in bodies for inner in body.instructions
    )


def file_of(folder: Path, shape: Shape, kind: str, chip: str) -> Path:
    """Return the file of a compiled program."""
    key = hashlib.sha1(f"{shape} {kind} {chip}".encode()).hexdigest()[:16]
    return folder / f"{key}.hlo"


def row(family: str, shape: Shape, kind: str, chip: str, module: HloModule) -> dict[str, object]:
    """Return a line of the table."""
    cycles, other = cycles_of(module)
    sizes = {"input": shape.size, "output": shape.outputs, "window": shape.window}
    named = {key: "x".join(map(str, value)) for key, value in sizes.items()}
    same = ("batch", "stride", "dilation", "groups", "in_channels", "out_channels", "padding")
    return {
        **named, **{key: getattr(shape, key) for key in same},
        "chip": chip, "kind": kind, "family": family, "transposed": int(shape.transposed),
        "held_out": int(shape.held_out), "dtype": "bf16", "cycles": cycles,
        "other_cycles": other, "clock_hz": int(load_chip(chip).clock), "libtpu": LIBTPU,
    }  # fmt: skip


def write_table(folder: Path) -> None:
    """Print the table of the programs in a folder."""
    print("".join(f"# {line}\n" for line in HEADER), end="")
    table = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    table.writeheader()
    with HloParser() as parser:
        for family, shape in shapes():
            for kind in shape.kinds:
                for chip in SLICES:
                    file = file_of(folder, shape, kind, chip)
                    if file.exists():
                        module = read_module(file.read_bytes(), str(file), parser)
                        table.writerow(row(family, shape, kind, chip, module))


def main() -> None:
    """Compile, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chips", default=",".join(SLICES))
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        write_table(given.folder)
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    for _, shape in shapes():
        for kind in shape.kinds:
            for chip in given.chips.split(","):
                file = file_of(given.folder, shape, kind, chip)
                if not file.exists():
                    file.write_text(compiled(shape, kind, chip), "utf-8")


if __name__ == "__main__":
    main()
