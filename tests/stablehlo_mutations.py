"""StableHLO as JAX writes it, with changes of its text or its bytes; run apart, as XLA may abort.

python stablehlo_mutations.py FIRST LAST     # one line of JSON for each number: what was said
"""

import json
import random
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

from hlo_mutations import COARSE

Change = Callable[[bytes, random.Random], bytes]
SIZE = re.compile(rb"(?<=[<x])\d+(?=x)")
OPCODE = re.compile(rb"stablehlo\.(\w+)")
DTYPE = re.compile(rb"(?<=x)(?:bf16|f32|i32|i1)(?=>)")
CONSTANT = re.compile(rb"(?<=dense<)\d+(?=>)")
AXIS = re.compile(rb'(?<=\{)"(?:data|model)"(?=\})')
ELEMENTWISE = (b"add", b"multiply", b"subtract", b"maximum", b"minimum", b"power")
VALUE = re.compile(rb"%\w+")
LIST = re.compile(rb"\[[\d, ]*\]")
DTYPES = b"bf16 f32 i32 i1 f64 i64 ui8 f8E4M3FN complex<f32> i4 index none".split()
LISTS = b"[] [0] [1] [0, 1] [1, 0] [-1] [9] [0, 0] [2, 4] [99999999999]".split(b"] ")


def size_everywhere(data: bytes, draw: random.Random) -> bytes:
    old = draw.choice(SIZE.findall(data) or [b"0"])
    new = draw.choice((b"0", b"1", b"3", b"?", b"7", b"1" + b"0" * 12, str(2 * int(old)).encode()))
    return re.sub(rb"(?<=[<x])" + old + rb"(?=x)", new, data)


def one_size(data: bytes, draw: random.Random) -> bytes:
    return _one(SIZE, (b"0", b"1", b"3", b"?", b"4096", b"-1"), data, draw)


def opcode_everywhere(data: bytes, draw: random.Random) -> bytes:
    found = OPCODE.findall(data) or [b"add"]
    return data.replace(b"stablehlo." + draw.choice(found), b"stablehlo." + draw.choice(found))


def one_dtype(data: bytes, draw: random.Random) -> bytes:
    return _one(DTYPE, DTYPES, data, draw)


def dtype_everywhere(data: bytes, draw: random.Random) -> bytes:
    old = draw.choice(DTYPE.findall(data) or [b"f32"])
    return re.sub(rb"(?<=x)" + old + rb"(?=>)", draw.choice(DTYPES), data)


def elementwise_everywhere(data: bytes, draw: random.Random) -> bytes:
    one, other = draw.sample(ELEMENTWISE, 2)
    return data.replace(b"stablehlo." + one + b" ", b"stablehlo." + other + b" ")


def one_constant(data: bytes, draw: random.Random) -> bytes:
    return _one(CONSTANT, (b"0", b"1", b"-1", b"7", b"1000000"), data, draw)


def one_sharding(data: bytes, draw: random.Random) -> bytes:
    return _one(AXIS, (b'"data"', b'"model"', b"", b"?", b'"data", "model"', b'"x"'), data, draw)


def one_value(data: bytes, draw: random.Random) -> bytes:
    return _one(VALUE, VALUE.findall(data) or [b"%0"], data, draw)


def one_list(data: bytes, draw: random.Random) -> bytes:
    return _one(LIST, [each.rstrip(b"]") + b"]" for each in LISTS], data, draw)


def _one(
    pattern: re.Pattern[bytes], words: Sequence[bytes], data: bytes, draw: random.Random
) -> bytes:
    places = list(pattern.finditer(data))
    if not places:
        return data
    found = draw.choice(places)
    return data[: found.start()] + draw.choice(words) + data[found.end() :]


FINE: tuple[Change, ...] = (
    size_everywhere, one_size, opcode_everywhere, one_dtype, dtype_everywhere, one_value, one_list,
    *(2 * (elementwise_everywhere, one_constant, one_sharding)),
)  # fmt: skip


@cache
def bases() -> tuple[bytes, ...]:
    """Programs with loops, branches, sorts, convolutions and shardings, as text and as bytecode."""
    import jax
    import jax.numpy as jnp
    from jax import export, lax
    from jax.sharding import NamedSharding, PartitionSpec

    import tpusim as ts

    mesh = ts.xla.make_mesh("v5e:2x4", {"data": 2, "model": 4})

    def array(*shape: int, spec: Any = None, dtype: Any = jnp.float32) -> Any:
        place = NamedSharding(mesh, PartitionSpec(*spec)) if spec else None
        return jax.ShapeDtypeStruct(shape, dtype, sharding=place)

    def train(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0].sum()

        return w - jax.grad(loss)(w)

    def mixed(x: Any) -> Any:
        order = jnp.argsort(x[:, 0])
        return lax.cond(x[0, 0] > 0, lambda x: jnp.sort(x), lambda x: x[order] * 2, x)

    def convolved(x: Any, k: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, k, (2, 2), "SAME", dimension_numbers=numbers)

    def exchanged(x: Any) -> Any:
        def own(x: Any) -> Any:
            return lax.psum(lax.all_gather(x, "model"), "data")

        spec = PartitionSpec("data", "model")
        return jax.shard_map(
            own, mesh=mesh, in_specs=spec, out_specs=PartitionSpec(None, None), check_vma=False
        )(x)

    steps = (
        (train, array(3, 16, 16, spec=(None, "model")), array(8, 16, spec=("data",))),
        (mixed, array(64, 32)),
        (convolved, array(8, 16, 16, 4, spec=("data",)), array(3, 3, 4, 8)),
        (exchanged, array(16, 32, spec=("data", "model"))),
    )
    texts, packed = [], []
    with jax.set_mesh(mesh):
        for fn, *args in steps:
            made = export.export(jax.jit(fn), platforms=["tpu"])(*args)
            texts.append(made.mlir_module().encode())
            packed.append(made.mlir_module_serialized)
            if find_spec("flatbuffers"):
                packed.append(bytes(made.serialize()))
    return (*4 * texts, *packed)


def broken(number: int) -> bytes:
    """The program of a number, with one to five changes."""
    draw = random.Random(f"stablehlo {number}")
    data = draw.choice(bases())
    text = data.startswith((b"module", b"#"))
    kinds = draw.choice((COARSE, FINE, FINE)) if text else COARSE[:1] + COARSE[3:4]
    for _ in range(draw.choice((1, 1, 2, 5))):
        data = draw.choice(kinds)(data, draw) or b"module"
    return data


class _ReachedError(Exception):
    """The TPU compiler would run now."""


def outcome(data: bytes, *, cut: bool = True) -> str:
    """What is said of a program; "" where it is compiled, or would be."""
    import tpusim as ts
    from tpusim.base import TpusimError
    from tpusim.compiler import compiling

    def stop(*_: object, **__: object) -> None:
        raise _ReachedError

    if cut:
        compiling.compile_apart = stop  # type: ignore[assignment]
    given = {"slice": "v5e:2x4", "cache": False, "until": "schedule", "time_limit": 120}
    try:
        try:
            ts.simulate(ts.xla.compile(data, **given))
        except TpusimError as error:
            if "--mesh" not in str(error):
                raise
            ts.simulate(ts.xla.compile(data, mesh={"data": 2, "model": 4}, **given))
    except _ReachedError:
        return ""
    except TpusimError as error:
        return str(error)
    except Exception:
        return traceback.format_exc(limit=-6)
    return ""


if __name__ == "__main__":
    for at in range(int(sys.argv[1]), int(sys.argv[2])):
        print(json.dumps([at, "begun"]), flush=True)
        print(json.dumps([at, outcome(broken(at), cut=len(sys.argv) < 4)]), flush=True)
