"""What the body of a Pallas kernel does, from the Mosaic module in it.

For the child process of `tpusim.xla.parser` alone, which hands over jaxlib's rooms of MLIR: what is
malformed may abort the process. It imports nothing of tpusim.
"""

import base64
import operator
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod
from typing import Any


@dataclass
class _Work:
    """What a kernel does.

    products: how often each is done, by its batch, m, k and n, the dtypes of both operands and
    whether these are multiplied exactly. operations: elements by the operation on them. once:
    whether a loop counts once as its trips are not constant.
    """

    products: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    operations: dict[str, Fraction] = field(default_factory=dict)
    once: bool = False

    def add(self, other: "_Work", times: int = 1) -> None:
        """Also what the other does, so many times."""
        for product, count in other.products.items():
            self.products[product] += times * count
        for name, elements in other.operations.items():
            self.operations[name] = self.operations.get(name, Fraction()) + times * elements
        self.once |= other.once

    def seldom(self, places: int) -> None:
        """Counts its operations in one of so many places; products count in all."""
        self.operations = {name: each / places for name, each in self.operations.items()}

    @property
    def size(self) -> tuple[int, float]:
        """Multiplications, and elements of all operations."""
        done = (count * prod(product[:4]) for product, count in self.products.items())
        return sum(done), float(sum(self.operations.values()))


MOST = 2**80
"""More multiplications, or elements, than any kernel has."""

PRODUCTS = ("tpu.matmul", "vector.contract")

UNREAD = ("func.call", "cf.br", "cf.cond_br", "cf.switch", "tpu.matmul_")
"""What operations begin with that do work elsewhere, jump, or multiply piece by piece."""


def worked(ir: Any, dialect: Any, body: bytes) -> dict[str, Any]:
    """The work of a kernel's body: products, each with its count, operations, `once`, and `moved`.

    ir, dialect: jaxlib's rooms of MLIR and of the TPU's own operations. A body is written in their
    stable form, which is registered nowhere: so operations are known by name. Loops and the grid
    multiply, of branches the costliest counts. moved: elements of each operand and result that its
    blocks are, each time that one is taken. Raises ValueError for what is not understood.
    """
    context = ir.Context()
    context.allow_unregistered_dialects = True
    dialect.register_dialect(context)
    module = ir.Module.parse(base64.b64decode(body, validate=True), context)
    functions = [each.operation for each in module.body.operations if _name(each) == "func.func"]
    kernel = next((each for each in functions if GRID in each.attributes), functions[0])
    if "<tc>" not in _said(kernel, "tpu.core_type", "<tc>"):
        raise ValueError("it is no kernel of the TensorCore")
    grid = _numbers(_said(kernel, GRID))
    found = _Work(once=any(size < 0 for size in grid))
    found.add(_inside(kernel, grid), prod(size for size in grid if size >= 0))
    products = [[count, *product] for product, count in found.products.items()]
    named = {_said(each, "sym_name").strip('"'): each for each in functions}
    windows = kernel.attributes.get("window_params", ())
    moved = [_moved(window, named, grid) for window in windows]
    if max(*found.size, *(each or 0 for each in moved), 0) > MOST:
        raise ValueError("it does more than any kernel")
    return {
        "products": products, "once": found.once, "moved": moved,
        "operations": {name: round(each) for name, each in found.operations.items()},
    }  # fmt: skip


GRID = "iteration_bounds"


def _name(operation: Any) -> str:
    return str(operation.operation.name).removeprefix("stable_mosaic.")


def _said(operation: Any, key: str, missing: str = "") -> str:
    found = operation.attributes
    return str(found[key]) if key in found else missing


def _numbers(array: str) -> list[int]:
    """Of `array<i64: 8, 2>`: 8 and 2."""
    return [int(number) for number in re.findall(r"-?\d+", array.partition(":")[2])]


def _moved(window: Any, functions: dict[str, Any], grid: list[int]) -> int | None:
    """Elements of all blocks that a window takes, one after the other; None where it has none.

    A block is taken anew where its place is not that of the iteration before: so as often as the
    innermost dimension of the grid turns that the place is made from.
    """
    if "window_bounds" not in window or "transform_indices" not in window:
        return None
    place = functions[str(window["transform_indices"]).removeprefix("@")]
    turning = [at for at in _made_from(place) if at < len(grid) and grid[at] > 1]
    block = prod(max(size, 0) for size in _numbers(str(window["window_bounds"])))
    return block * prod(max(size, 1) for size in grid[: max(turning, default=-1) + 1])


def _made_from(function: Any) -> set[int]:
    """The numbers of the arguments that a function of one block makes its results from."""
    operations = list(function.regions[0].blocks[0].operations)
    asked, found = list(operations[-1].operands), set()
    seen: set[Any] = set()
    while asked:
        value = asked.pop()
        if value in seen:
            continue
        seen.add(value)
        if hasattr(value.owner, "operands"):
            asked += value.owner.operands
        else:
            found.add(int(value.arg_number))
    return found


def _sends(transfer: Any) -> bool:
    """Whether a transfer goes to another chip: only such a one has a semaphore at its source."""
    return sum(_numbers(_said(transfer, "operandSegmentSizes"))[1:2]) > 0


def _inside(operation: Any, grid: list[int]) -> _Work:
    """What all regions of an operation do, once."""
    found = _Work()
    for region in operation.regions:
        found.add(_region(region, grid))
    return found


def _region(region: Any, grid: list[int]) -> _Work:
    found = _Work()
    for block in region.blocks:
        for each in block.operations:
            _count(each.operation, found, grid)
    return found


def _count(operation: Any, work: _Work, grid: list[int]) -> None:
    """Adds what an operation does."""
    name = _name(operation)
    if name in ("scf.if", "scf.index_switch"):
        branches = [_region(region, grid) for region in operation.regions]
        if name == "scf.if":
            branches[0].seldom(_places(operation.operands[0], grid))
        work.add(max(branches, key=lambda branch: branch.size))
    elif name in ("scf.for", "scf.while"):
        trips = _trips(operation) if name == "scf.for" else None
        once = 0 if name == "scf.for" and _rest(operation) else 1
        work.add(_inside(operation, grid), once if trips is None else trips)
        work.once |= trips is None
    elif name in PRODUCTS:
        work.products[_product(operation)] += 1
    elif name in SUMS and any(map(_is_product, operation.operands)):
        return
    elif name.startswith(UNREAD) or (name == "tpu.enqueue_dma" and _sends(operation)):
        raise ValueError(f"{name} is not understood")
    elif len(operation.regions):
        work.add(_inside(operation, grid))
    else:
        elements = max(map(prod, map(_dims, _vectors(operation))), default=0)
        work.operations[name] = work.operations.get(name, Fraction()) + elements


SUMS = ("arith.addf", "arith.addi")
"""What a product is added to its sum by. It counts with the product, as the same sum does in a
product of the compiler's own, over the parts of what is contracted."""


def _is_product(value: Any) -> bool:
    return hasattr(value.owner, "operands") and _name(value.owner) in PRODUCTS


def _places(condition: Any, grid: list[int], depth: int = 0) -> int:
    """Of how many iterations one fulfils a condition, such as that it is the first or the last."""
    made = condition.owner
    name = _name(made) if hasattr(made, "operands") and depth <= DEEPEST else ""
    if name == "arith.extui":
        return _places(made.operands[0], grid, depth + 1)
    if name == "arith.andi":
        return prod(_places(each, grid, depth + 1) for each in made.operands)
    if name != "arith.cmpi" or _number(made.operands[1]) is None:
        return 1
    left, predicate = made.operands[0], int(made.attributes["predicate"])
    if predicate == NOT_EQUAL and _number(made.operands[1]) == 0:
        return _places(left, grid, depth + 1)
    in_grid = not hasattr(left.owner, "operands") and _name(left.owner.owner) == "func.func"
    if predicate != EQUAL or not in_grid:
        return 1
    return max(1, *grid[int(left.arg_number) :][:1])


EQUAL, NOT_EQUAL = 0, 1
"""Comparisons of whole numbers, as MLIR numbers them."""


def _trips(loop: Any) -> int | None:
    """Trips of a loop whose bounds are constant."""
    start, stop, step = (_number(bound) for bound in list(loop.operands)[:3])
    if start is None or stop is None or not step or step < 0:
        return None
    return max(0, -((start - stop) // step))


def _rest(loop: Any) -> bool:
    """Whether it does what an unrolled loop before it leaves: it begins where that one ends."""
    uses = [(_name(use.owner), use.operand_number) for use in loop.operands[0].uses]
    return _number(loop.operands[0]) is None and ("scf.for", 1) in uses


DEEPEST = 8
"""Operations from a loop's bound back to constants; each may have two operands."""


def _number(value: Any, depth: int = 0) -> int | None:
    """The value of a number that is made of constants."""
    made = value.owner
    if depth > DEEPEST or not hasattr(made, "operands"):
        return None
    name = _name(made)
    if name == "arith.constant":
        return int(made.attributes["value"].value)
    found = [_number(operand, depth + 1) for operand in made.operands]
    if name not in ARITHMETIC or None in found:
        return None
    return ARITHMETIC[name](*found)


ARITHMETIC: dict[str, Callable[..., int]] = {
    "arith.addi": operator.add,
    "arith.subi": operator.sub,
    "arith.muli": operator.mul,
    "arith.divsi": operator.floordiv,
    **dict.fromkeys(("arith.index_cast", "arith.extsi", "arith.trunci"), operator.pos),
}


def _vectors(operation: Any) -> list[Any]:
    values = [*operation.operands, *operation.results]
    return [value.type for value in values if str(value.type).startswith("vector<")]


def _dims(vector: Any) -> list[int]:
    """Of `vector<8x128xf32>`: 8 and 128."""
    return [int(size) for size in re.findall(r"(\d+)x", str(vector))]


def _product(operation: Any) -> tuple[Any, ...]:
    """Batch, m, k and n of a product, the dtypes of its operands, and whether it is exact."""
    left, right = (value.type for value in list(operation.operands)[:2])
    sizes, others = _dims(left), _dims(right)
    contracted, batched = _roles(operation)
    batch, k = (prod(sizes[dim] for dim in dims) for dims in (batched, contracted))
    m, n = (prod(dims) // max(batch * k, 1) for dims in (sizes, others))
    dtypes = (str(each.element_type) for each in (left, right))
    return batch, m, k, n, *dtypes, "fp32" in _said(operation, "precision")


def _roles(operation: Any) -> tuple[list[int], list[int]]:
    """The dimensions of the left operand that are contracted, and those of the batch."""
    maps = re.findall(r"-> \(([^)]*)\)", _said(operation, "indexing_maps"))
    if maps:
        left, right, out = (each.split(", ") for each in maps)
        return (
            [at for at, dim in enumerate(left) if dim not in out],
            [at for at, dim in enumerate(left) if dim in out and dim in right],
        )
    dims = re.findall(r"\[([\d, ]*)\]", _said(operation, "dimension_numbers"))
    if not dims:
        return [0 if "true" in _said(operation, "transpose_lhs") else 1], []
    contracted, batched = ([int(dim) for dim in re.findall(r"\d+", dims[at])] for at in (0, 5))
    return contracted, batched
