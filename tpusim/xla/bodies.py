"""The bodies of Pallas kernels, as far as they can be read: what their operations are, and cost."""

from collections.abc import Iterable, Mapping, Sequence
from time import monotonic

from tpusim.xla.attributes import kernel_config, target
from tpusim.xla.child import Parser
from tpusim.xla.dots import PASSES, Product, multiplied
from tpusim.xla.inside import Tally
from tpusim.xla.module import Body, Computation, Instruction, Products
from tpusim.xla.opcodes import KERNELS, weight
from tpusim.xla.shapes import Shape

SECONDS, EACH = 20.0, 5.0
"""How long the bodies of a module may take, all together and one: it takes milliseconds."""


def body_of(instruction: Instruction) -> str:
    """The body of a kernel whose author gives no estimate, in base64; else nothing."""
    if instruction.opcode != "custom-call" or target(instruction) not in KERNELS:
        return ""
    config = kernel_config(instruction)
    found = "" if config.get("cost_estimate") else config.get("body")
    return found if isinstance(found, str) else ""


def bodies(computations: Iterable[Computation], parser: Parser) -> dict[str, Body]:
    """What the kernels of these computations do, by their bodies; only of those that can be read.

    Whatever is wrong with a body, it is left out: the kernel is then of unknown work.
    """
    texts = {body_of(each) for computation in computations for each in computation.instructions}
    found: dict[str, Body] = {}
    until = monotonic() + SECONDS
    for text in sorted(texts - {""}):
        left = until - monotonic()
        answer = parser.worked(text, min(left, EACH)) if left > 0 else None
        if answer is not None:
            products = tuple(Products(*each) for each in answer.pop("products"))
            found[text] = Body(products, moved=tuple(answer.pop("moved")), **answer)
    return found


def moved_bytes(
    body: Body, operands: Sequence[Shape], results: Sequence[Shape]
) -> tuple[float, float]:  # fmt: skip
    """Bytes that cross HBM: what is read of operands and written of results.

    What comes in blocks crosses a block at a time, as often as it is taken; all else once, as
    numbers that are there before the grid begins (they are the first operands) or what the kernel
    fetches itself.
    """
    shapes = [*operands, *results]
    before = len(shapes) - len(body.moved)
    moved = [None] * before + [*body.moved] if before >= 0 else [None] * len(shapes)
    crossing = [
        shape.hbm_bytes * (1.0 if elements is None else elements / max(shape.elements, 1))
        for shape, elements in zip(shapes, moved, strict=True)
    ]
    return sum(crossing[: len(operands)]), sum(crossing[len(operands) :])


def tally_of(body: Body) -> Tally:
    """Its products, and the vector operations beside them."""
    vector = sum(_weight(name) * elements for name, elements in body.operations.items())
    return Tally(vector, [_product(each) for each in body.products if each.times])


def _product(found: Products) -> Product:
    dtype = multiplied(*map(_as_in_hlo, (found.left, found.right)))
    return Product(
        batch=found.times * found.batch, m=found.m, k=found.k, n=found.n, dtype=dtype,
        passes=PASSES["highest"] if found.exact and dtype == "f32" else 1,
    )  # fmt: skip


def _as_in_hlo(dtype: str) -> str:
    """MLIR's `i8` is HLO's `s8`, and its `f8E4M3FN` the same in small letters."""
    return dtype.replace("i", "s") if dtype.startswith("i") else dtype.lower()


def _weight(name: str) -> float:
    """Vector operations an element, as of the same in HLO."""
    room, _, word = name.partition(".")
    found = weight(_IN_HLO.get(word, word)) if room in _COMPUTE or word in _IN_HLO else 0.0
    return 1.0 if found is None else found


_COMPUTE = ("arith", "math")

_IN_HLO: Mapping[str, str] = {
    **dict.fromkeys(("multi_reduction", "reduction", "all_reduce"), "add"),
    **dict.fromkeys(("divf", "divsi", "divui", "reciprocal"), "divide"),
    **dict.fromkeys(("remf", "remsi", "remui"), "remainder"),
    **dict.fromkeys(("exp", "exp2"), "exponential"),
    **dict.fromkeys(("expm1", "log1p", "log2"), "log"),
    **dict.fromkeys(("powf", "fpowi", "ipowi"), "power"),
    **dict.fromkeys(("sin", "cos"), "sine"),
}
"""What operations of kernels are called in HLO, where that matters: all else that computes is one
operation an element."""
