"""Kernels of tests/data/hlo/kernels, and bodies written by hand, as MLIR's text."""

import base64
import gzip
import re

from compiler_parts import (
    HloModule,
    HloParser,
    Instruction,
    InstructionWork,
    instruction_work,
    read_module,
    split_header,
)
from hlo import DATA

KERNELS = DATA / "kernels"


def text_of(file: str) -> str:
    return split_header(gzip.decompress((KERNELS / f"{file}.hlo.gz").read_bytes()))[1].decode()


def kernel_of(module: HloModule) -> Instruction:
    return next(each for each in module.main.instructions if each.opcode == "custom-call")


def work_of(text: str, parser: HloParser) -> InstructionWork:
    module = read_module(text.encode(), "kernel", parser)
    return instruction_work(module, module.main, kernel_of(module))


def with_body(text: str, body: bytes) -> str:
    """The module with another body in its kernel."""
    return re.sub(r'"body":"[^"]*"', f'"body":"{base64.b64encode(body).decode()}"', text)


BLOCKS = "vector<256x128xbf16>, vector<128x512xbf16>, vector<256x512xf32>"
MATMUL = f'"stable_mosaic.tpu.matmul"(%l, %r, %o) {{}} : ({BLOCKS}) -> vector<256x512xf32>'
ADD = (
    '"stable_mosaic.arith.addf"(%o, %o) : (vector<256x512xf32>, vector<256x512xf32>) -> '
    "vector<256x512xf32>"
)
ONE = 2 * 256 * 128 * 512


def by_hand(inside: str, attributes: str = "") -> bytes:
    """A kernel with such operations between constants and its end, as MLIR's text."""

    def constant(name: str, kind: str, value: str) -> str:
        return f'%{name} = "stable_mosaic.arith.constant"() {{value = {value} : {kind}}} : () -> '

    numbers = "".join(f"{constant(f'c{n}', 'i32', str(n))} i32\n" for n in (0, 1, 3, 10))
    return f"""
    "stable_mosaic.func.func"() ({{
    ^bb0(%i: i32, %j: i32, %yes: i1, %given: i32, %l: vector<256x128xbf16>,
         %r: vector<128x512xbf16>, %o: vector<256x512xf32>):
      {numbers}
      {inside}
      "stable_mosaic.func.return"() : () -> ()
    }}) {{ sym_name = "kernel" {attributes} }} : () -> ()
    """.encode()


def loop(start: str, stop: str, step: str, inside: str) -> str:
    return f"""
    "stable_mosaic.scf.for"({start}, {stop}, {step}) ({{
    ^bb0(%at: i32):
      {inside}
      "stable_mosaic.scf.yield"() : () -> ()
    }}) : (i32, i32, i32) -> ()
    """


def branches(first: str, second: str) -> str:
    end = '"stable_mosaic.scf.yield"() : () -> ()'
    return f'"stable_mosaic.scf.if"(%yes) ({{ {first} {end} }}, {{ {second} {end} }}) : (i1) -> ()'


def condition(left: str, predicate: int, right: str, name: str = "c") -> str:
    number = f"{{predicate = {predicate} : i64}} : (i32, i32) -> i1"
    return f'%{name} = "stable_mosaic.arith.cmpi"({left}, {right}) {number}\n'


def when(condition: str, inside: str) -> str:
    """A conditional, as `pl.when` makes it."""
    return branches(inside, "").replace("%yes", condition)


GRID = ", iteration_bounds = array<i64: 4, 3>"
