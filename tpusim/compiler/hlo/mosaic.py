"""Work in the body of a Pallas kernel, from its Mosaic module.

Used only by the child process that runs `parser.py`, which passes jaxlib's MLIR modules: malformed
input may abort the process. It imports nothing of tpusim.
"""

import base64
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any


@dataclass
class _MosaicWork:
    """The work of a kernel.

    matmuls: counts by batch, m, k and n, the dtypes of both operands, and True for exact ones.
    operations: elements by the operation on them.
    once: True if a loop is counted once because its trip count is not constant.
    """

    matmuls: Counter[Any] = field(default_factory=Counter)
    operations: Counter[Any] = field(default_factory=Counter)
    once: bool = False

    def add(self, other: "_MosaicWork", times: Any = 1) -> None:
        """Add `times` times the other work; a share of it is a Fraction."""
        for mine, its in ((self.matmuls, other.matmuls), (self.operations, other.operations)):
            for what, count in its.items():
                mine[what] += times * count
        self.once |= other.once

    @property
    def size(self) -> tuple[float, float]:
        """Multiplications, and elements of all operations."""
        done = (count * prod(matmul[:4]) for matmul, count in self.matmuls.items())
        return float(sum(done)), float(sum(self.operations.values()))


MAX_WORK = 2**80
"""Bound on multiplications and elements, above that of any real kernel."""

MATMUL_OPERATIONS = ("tpu.matmul", "vector.contract")

NOT_UNDERSTOOD = ("func.call", "cf.br", "cf.cond_br", "cf.switch", "tpu.matmul_")
"""Prefixes of operations that work elsewhere, jump, or multiply piece by piece."""


def kernel_work(ir: Any, dialects: Sequence[Any], values: Any, body: bytes) -> dict[str, Any]:
    """Return the work of a kernel's body: `matmuls` with counts, `operations`, `once` and `moved`.

    ir, dialects: jaxlib's modules for MLIR, for the TPU's own operations and for all others. A
        body that JAX wrote is in their stable form, which is registered nowhere, so operations are
        known by name. XLA's own kernels (`online-softmax`) are text, which only the registered
        dialects can parse.
    values: the file `mosaic_values.py`, as a module.

    Loops and the grid multiply. A branch counts at the steps at which its condition holds, if they
    follow from the steps (`pl.when(k == 0)`: 1 of n). Of others the costlier counts, and of two
    whose conditions are opposites as well. `moved` holds the elements of
    each operand's and result's blocks, counted each time that one is transferred. Raise ValueError
    for a body that is not understood.
    """
    module = ir.Module.parse(base64.b64decode(body, validate=True), _context(ir, *dialects))
    functions = [each.operation for each in module.body.operations if _name(each) == "func.func"]
    kernel = next((each for each in functions if GRID_ATTRIBUTE in each.attributes), functions[0])
    if "<tc>" not in _attribute(kernel, "tpu.core_type", "<tc>"):
        raise ValueError("it is no kernel of the TensorCore")
    grid = _numbers(_attribute(kernel, GRID_ATTRIBUTE))
    found = _MosaicWork(once=any(size < 0 for size in grid))
    inside = _Body(values, values.KernelValues(grid)).regions_work(kernel)
    found.add(inside, prod(size for size in grid if size >= 0))
    matmuls = [[round(count), *matmul] for matmul, count in found.matmuls.items()]
    named = {_attribute(each, "sym_name").strip('"'): each for each in functions}
    windows = kernel.attributes.get("window_params", ())
    moved = [_block_elements(window, named, grid) for window in windows]
    if max(*found.size, *(each or 0 for each in moved), 0) > MAX_WORK:
        raise ValueError("it does more than any kernel")
    return {
        "matmuls": matmuls,
        "once": found.once,
        "moved": moved,
        "operations": {name: round(each) for name, each in found.operations.items()},
    }


GRID_ATTRIBUTE = "iteration_bounds"


def _context(ir: Any, tpu: Any, others: Any) -> Any:
    context = ir.Context()
    context.allow_unregistered_dialects = True
    tpu.register_dialect(context)
    registry = ir.DialectRegistry()
    others.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    return context


def _name(operation: Any) -> str:
    return str(operation.operation.name).removeprefix("stable_mosaic.")


def _attribute(operation: Any, key: str, missing: str = "") -> str:
    found = operation.attributes
    return str(found[key]) if key in found else missing


def _numbers(array: str) -> list[int]:
    """Return 8 and 2 for `array<i64: 8, 2>`."""
    return [int(number) for number in re.findall(r"-?\d+", array.partition(":")[2])]


def _block_elements(window: Any, functions: dict[str, Any], grid: list[int]) -> int | None:
    """Return the elements of all blocks that a window transfers; None if it has no blocks.

    A block is transferred again when its index differs from the iteration before: as often as the
    innermost grid dimension on which the index depends advances.
    """
    if "window_bounds" not in window or "transform_indices" not in window:
        return None
    place = functions[str(window["transform_indices"]).removeprefix("@")]
    turning = [at for at in _index_arguments(place) if at < len(grid) and grid[at] > 1]
    block = prod(max(size, 0) for size in _numbers(str(window["window_bounds"])))
    return block * prod(max(size, 1) for size in grid[: max(turning, default=-1) + 1])


def _index_arguments(function: Any) -> set[int]:
    """Return the numbers of the arguments on which the results of a one-block function depend."""
    operations = list(function.regions[0].blocks[0].operations)
    pending, found = list(operations[-1].operands), set()
    seen: set[Any] = set()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if hasattr(value.owner, "operands"):
            pending += value.owner.operands
        else:
            found.add(int(value.arg_number))
    return found


def _sends(transfer: Any) -> bool:
    """Return True if a transfer goes to another chip: only then has its source a semaphore."""
    return sum(_numbers(_attribute(transfer, "operandSegmentSizes"))[1:2]) > 0


class _Body:
    """The operations of a body, and the steps at which they are done.

    files: the module of `mosaic_values.py`; values: the kernel's numbers.
    """

    def __init__(self, files: Any, values: Any) -> None:
        self.files, self.values = files, values
        self.where = files.ALWAYS

    def regions_work(self, operation: Any) -> _MosaicWork:
        found = _MosaicWork()
        for region in operation.regions:
            found.add(self.region_work(region))
        return found

    def region_work(self, region: Any) -> _MosaicWork:
        found = _MosaicWork()
        for block in region.blocks:
            undecided: dict[Any, dict[bool, _MosaicWork]] = {}
            for each in block.operations:
                if _name(each) == "scf.if":
                    self.branch(each.operation, found, undecided)
                else:
                    self.count(each.operation, found)
            for sides in undecided.values():
                found.add(max(sides.values(), key=lambda side: side.size))
        return found

    def branch(
        self, operation: Any, work: _MosaicWork, undecided: dict[Any, dict[bool, _MosaicWork]]
    ) -> None:
        """Count a conditional; work at steps that are not known is put to its side."""
        condition = operation.operands[0]
        holds = self.values.holds(condition)
        places = (holds, None if holds is None else ~holds)
        if holds is None:
            places = (self.values.may_hold(condition), self.files.ALWAYS)
            key, side = self.files.sides(condition)
        for at, (region, where) in enumerate(zip(operation.regions, places, strict=False)):
            done, around = _MosaicWork(), self.where
            share, self.where = self.files.share(where, around)
            done.add(self.region_work(region), share)
            self.where = around
            if holds is None:
                mine = undecided.setdefault(key, {}).setdefault(side is (at == 0), _MosaicWork())
                mine.add(done)
            else:
                work.add(done)

    def count(self, operation: Any, work: _MosaicWork) -> None:
        name = _name(operation)
        if name == "scf.index_switch":
            branches = [self.region_work(region) for region in operation.regions]
            work.add(max(branches, key=lambda branch: branch.size))
        elif name in ("scf.for", "scf.while"):
            self.loop(operation, work, name == "scf.for")
        elif name in MATMUL_OPERATIONS:
            work.matmuls[_matmul(operation)] += 1
        elif name in ADDITIONS and any(map(_is_matmul, operation.operands)):
            return
        elif name.startswith(NOT_UNDERSTOOD) or (name == "tpu.enqueue_dma" and _sends(operation)):
            raise ValueError(f"{name} is not understood")
        elif len(operation.regions):
            work.add(self.regions_work(operation))
        else:
            work.operations[name] += max(map(prod, map(_dims, _vectors(operation))), default=0)

    def loop(self, operation: Any, work: _MosaicWork, counted: bool) -> None:
        """Count a loop; one whose trips are not constant counts once, its remainder never."""
        trips = self.trips(operation) if counted else None
        once = 0 if counted and self.is_remainder(operation) else 1
        if counted:
            self.values.enter(operation, trips)
        work.add(self.regions_work(operation), once if trips is None else trips)
        if counted:
            self.values.leave()
        work.once |= trips is None

    def trips(self, loop: Any) -> int | None:
        """Return the trip count of a loop whose bounds are the same at every step."""
        start, stop, step = (self.values.constant(bound) for bound in list(loop.operands)[:3])
        if start is None or stop is None or not step or step < 0:
            return None
        return max(0, -int((start - stop) // step))

    def is_remainder(self, loop: Any) -> bool:
        """Return True for the remainder of an unrolled loop: it begins where that one ends."""
        uses = [(_name(use.owner), use.operand_number) for use in loop.operands[0].uses]
        return self.values.constant(loop.operands[0]) is None and ("scf.for", 1) in uses


ADDITIONS = ("arith.addf", "arith.addi")
"""Operations that add a matmul to its sum. They count with the matmul, as the same sum over parts
of the contraction does in the compiler's own matmuls."""


def _is_matmul(value: Any) -> bool:
    return hasattr(value.owner, "operands") and _name(value.owner) in MATMUL_OPERATIONS


def _vectors(operation: Any) -> list[Any]:
    values = [*operation.operands, *operation.results]
    return [value.type for value in values if str(value.type).startswith("vector<")]


def _dims(vector: Any) -> list[int]:
    """Return 8 and 128 for `vector<8x128xf32>`."""
    return [int(size) for size in re.findall(r"(\d+)x", str(vector))]


def _matmul(operation: Any) -> tuple[Any, ...]:
    """Return batch, m, k and n, the operands' dtypes, and True if the matmul is exact."""
    left, right = (value.type for value in list(operation.operands)[:2])
    sizes, others = _dims(left), _dims(right)
    contracted, batched = _dot_dimensions(operation)
    batch, k = (prod(sizes[dim] for dim in dims) for dims in (batched, contracted))
    m, n = (prod(dims) // max(batch * k, 1) for dims in (sizes, others))
    dtypes = (str(each.element_type) for each in (left, right))
    return batch, m, k, n, *dtypes, "fp32" in _attribute(operation, "precision")


def _dot_dimensions(operation: Any) -> tuple[list[int], list[int]]:
    """Return the contracted and the batch dimensions of the left operand."""
    maps = re.findall(r"-> \(([^)]*)\)", _attribute(operation, "indexing_maps"))
    if maps:
        left, right, out = (each.split(", ") for each in maps)
        return (
            [at for at, dim in enumerate(left) if dim not in out],
            [at for at, dim in enumerate(left) if dim in out and dim in right],
        )
    dims = re.findall(r"\[([\d, ]*)\]", _attribute(operation, "dimension_numbers"))
    if not dims:
        return [0 if "true" in _attribute(operation, "transpose_lhs") else 1], []
    contracted, batched = ([int(dim) for dim in re.findall(r"\d+", dims[at])] for at in (0, 5))
    return contracted, batched
