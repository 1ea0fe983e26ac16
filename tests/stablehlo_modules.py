"""StableHLO modules with shardings of GSPMD, of Shardy or none, valid and nearly so, and meshes."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

DEVICES = 8
SIZES = (*4 * (8, 16, 64), 4, 3)
DTYPES = ("bf16", "f32", "i32", "i1", "f8E4M3FN", "i4", "ui8", "f16")
STRANGE_TYPES = (
    *("tensor<?x8xf32>", "tensor<*xf32>", "tuple<tensor<4xf32>>", "!stablehlo.token", "f32"),
    *("tensor<4xf64>", "tensor<4xi64>", "tensor<4xcomplex<f32>>", "tensor<4x!quant.uniform<i8>>"),
    *("tensor<0x4xf32>", "tensor<4xindex>", "memref<4xf32>", "tensor<4xf32, #stablehlo.bounds<4>>"),
)
AXES = ("x", "y", "data", "model", "fsdp", "tensor", "dcn_data", "stage", "a b", "é", "")


@dataclass(frozen=True, slots=True)
class Case:
    """A module, and what it is compiled for."""

    text: bytes
    slice: str
    mesh: Any


def factors(count: int, draw: random.Random) -> list[int]:
    """A product of sizes that is `count`."""
    found = []
    while count > 1:
        size = draw.choice([size for size in range(2, count + 1) if count % size == 0])
        found.append(size)
        count //= size
    return found or [1]


def gspmd(rank: int, draw: random.Random) -> str:
    """A sharding as HLO writes it: of the right rank and devices, mostly."""
    kind = draw.random()
    if kind < 0.2:
        return "{replicated}"
    if kind < 0.22:
        return draw.choice(("{maximal device=0}", "{maximal device=99}", "{manual}", "{unknown}"))
    if kind < 0.25:
        return draw.choice(
            ("", "{", "{devices=[2,4]}", "{devices=[8]<=[4]}", "replicated", "{devices=[2]0,0}",
             "{devices=[-1,8]<=[8]}", "{{replicated}, {replicated}}", "{devices=[3,2]<=[6]}",
             "{devices=[99999999999]<=[99999999999]}", "{devices=[0]<=[0]}", "{tpu}")
        )  # fmt: skip
    rank = rank if draw.random() < 0.93 else draw.randrange(4)
    sizes = factors(DEVICES if draw.random() < 0.9 else 4, draw)
    dims = [1] * rank
    rest = 1
    for size in sizes:
        at = draw.randrange(rank + 1)
        if at == rank:
            rest *= size
        else:
            dims[at] *= size
    tail = " last_tile_dim_replicate" if rest > 1 or draw.random() < 0.1 else ""
    shape = [*dims, rest] if tail else dims
    order = factors(prod(shape), draw)
    turned = ""
    if len(order) > 1 and draw.random() < 0.4:
        numbers = list(range(len(order)))
        draw.shuffle(numbers)
        turned = f"T({','.join(map(str, numbers))})"
    else:
        order = [prod(shape)]
    tiles = ",".join(map(str, shape))
    if draw.random() < 0.04:
        ids = list(range(prod(shape)))
        draw.shuffle(ids)
        return f"{{devices=[{tiles}]{','.join(map(str, ids))}{tail}}}"
    return f"{{devices=[{tiles}]<=[{','.join(map(str, order))}]{turned}{tail}}}"


def shardy(rank: int, axes: Sequence[str], draw: random.Random) -> str:
    """A sharding of Shardy over the axes, mostly."""
    left = [*axes, *(draw.choice(AXES) for _ in range(draw.random() < 0.1))]
    dims = []
    for _ in range(rank if draw.random() < 0.95 else draw.randrange(4)):
        taken = []
        while left and draw.random() < 0.4:
            axis = left.pop(draw.randrange(len(left)))
            part = draw.choice((":(1)2", ":(2)2", "")) if draw.random() < 0.15 else ""
            taken.append(f'"{axis}"{part}')
            if draw.random() < 0.05:
                left.append(axis)
        taken += ["?"] * (draw.random() < 0.1)
        dims.append(f"{{{', '.join(taken)}}}")
    more = ', replicated={"x"}' if draw.random() < 0.05 else ""
    mesh = "@mesh" if draw.random() < 0.95 else '<["z"=8]>'
    return f"#sdy.sharding<{mesh}, [{', '.join(dims)}]{more}>"


def module(draw: random.Random) -> tuple[str, dict[str, int]]:
    """A product with shardings of its arguments and its result, and the mesh of Shardy's."""
    style = draw.choice(("gspmd", "gspmd", "sdy", "none"))
    sizes = factors(DEVICES if draw.random() < 0.9 else draw.choice((1, 4, 16)), draw)
    axes = draw.sample(AXES[:8] if draw.random() < 0.9 else AXES, len(sizes))
    m, k, n = (draw.choice(SIZES) for _ in range(3))
    dtype = draw.choice(DTYPES[:2]) if draw.random() < 0.8 else draw.choice(DTYPES)
    types = [f"tensor<{m}x{k}x{dtype}>", f"tensor<{k}x{n}x{dtype}>", f"tensor<{m}x{n}x{dtype}>"]

    def marked() -> str:
        found = []
        if style == "gspmd" and draw.random() < 0.7:
            found.append(f'mhlo.sharding = "{gspmd(2, draw)}"')
        if style == "sdy" and draw.random() < 0.8:
            found.append(f"sdy.sharding = {shardy(2, axes, draw)}")
        if draw.random() < 0.1:
            found.append(draw.choice(("jax.buffer_donor = true", "tf.aliasing_output = 0 : i32")))
        return f" {{{', '.join(found)}}}" if found else ""

    extra = f", %arg2: {draw.choice(STRANGE_TYPES)}{marked()}" if draw.random() < 0.06 else ""
    body = (
        "stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : "
        f"({types[0]}, {types[1]}) -> {types[2]}"
    )
    count = prod(sizes) if draw.random() < 0.97 else draw.choice((0, 1, 3, 4, -8))
    held = []
    if style != "none" or draw.random() < 0.5:
        held = [f"mhlo.num_partitions = {count} : i32"]
        held += ["mhlo.num_replicas = 1 : i32"] * (draw.random() < 0.8)
    if draw.random() < 0.03:
        held = [draw.choice(('mhlo.num_partitions = "8"', "mhlo.num_replicas = 8 : i32"))]
    mesh = ""
    if style == "sdy" and draw.random() < 0.95:
        written = ", ".join(f'"{axis}"={size}' for axis, size in zip(axes, sizes, strict=True))
        mesh = f"  sdy.mesh @mesh = <[{written}]>\n"
    name = "main" if draw.random() < 0.97 else "other"
    where = " loc(unknown)" if draw.random() < 0.3 else ""
    attributes = f" attributes {{{', '.join(held)}}}" if held else ""
    text = (
        f"module @step{attributes} {{\n{mesh}"
        f"  func.func public @{name}(%arg0: {types[0]}{marked()}, %arg1: {types[1]}{marked()}"
        f"{extra}) -> ({types[2]}{marked()}) {{\n"
        f"    %0 = {body}{where}\n    return %0 : {types[2]}\n  }}\n}}\n"
    )
    return text, dict(zip(axes, sizes, strict=True)) if style == "sdy" else {}


def some_mesh(draw: random.Random) -> Any:
    """A mesh of eight devices, mostly; or none."""
    chance = draw.random()
    if chance < 0.25:
        return None
    sizes = factors(DEVICES if chance < 0.9 else draw.choice((1, 3, 4, 16)), draw)
    sizes += [1] * (draw.random() < 0.1)
    names = draw.sample(AXES[:6] if draw.random() < 0.8 else AXES, len(sizes))
    if draw.random() < 0.03:
        return draw.choice((8, "data=8", ["data"], {"data": 0}, {"data": "8"}, {8: 8}, {}, (8,)))
    return dict(zip(names, sizes, strict=True))


def case(number: int) -> Case:
    """The module and mesh of a number."""
    draw = random.Random(f"mesh {number}")
    text, own = module(draw)
    slices = (*5 * ("v5e:2x4",), "v6e:2x4", "v4:2x2x2", "v5e:2x2 x 2", "v5e:2x2")
    mesh = draw.choice((None, own)) if own and draw.random() < 0.7 else some_mesh(draw)
    return Case(text.encode(), draw.choice(slices), mesh)
