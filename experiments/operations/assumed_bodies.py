"""What a fusion computes, as far as the shapes of its operands and results say.

Lines of a profile name a fusion's body but do not hold it. So one is assumed: every operand is
brought to the largest shape (widened, broadcast, padded or rearranged), all are added up in f32 and
rounded, as compiled programs do with bf16, and each result is cut or summed from that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from instruction_line import InstructionLine

from tpusim.compiler.hlo.module import Computation, HloModule, Instruction
from tpusim.compiler.hlo.shapes import Shape

BODY = "assumed"


def with_body(line: InstructionLine, devices: int, multiplies: bool) -> HloModule:
    """Return the module of a line; a fusion calls an assumed body, with a matmul if it has one."""
    if line.instruction.opcode != "fusion":
        return line.module(devices=devices)
    body = _Body(line, multiplies).computation()
    called = replace(line.instruction, attributes=f"calls={BODY}, {line.instruction.attributes}")
    return replace(line, instruction=called).module(body, devices=devices)


def text_of(shape: Shape) -> str:
    """Return a shape as HLO writes it."""
    tiles = "".join(f"({','.join(map(str, tile))})" for tile in shape.tiles)
    space = f"S({shape.space})" if shape.space else ""
    layout = f"{','.join(map(str, shape.order))}:{'T' + tiles if tiles else ''}{space}"
    return f"{shape}{{{layout}}}"


def _sizes(shape: Shape) -> tuple[int, ...]:
    return tuple(dim for dim in shape.dims if dim > 1)


def _is_part(few: Sequence[int], many: Sequence[int]) -> bool:
    """Return True if some sizes appear in the same order among others."""
    left = iter(many)
    return all(size in left for size in few)


@dataclass
class _Body:
    """A body while it is written."""

    line: InstructionLine
    multiplies: bool
    made: list[Instruction] = field(default_factory=list)

    def computation(self) -> Computation:
        """Return the body: of a matmul, a lookup, a gated product, or element-wise code."""
        self.made += self.line.operands
        results = self.line.instruction.arrays
        given = [each for each in self.line.operands if each.arrays[0].dims]
        if "kind=kCustom" in self.line.instruction.attributes and len(given) > 1:
            root = self.add("gather", results[0], *(each.name for each in given[:2]))
        elif self.multiplies and (matmul := _matmul(results[0], given)) is not None:
            root = self._matmul(results[0], given, *matmul)
        else:
            root = self._elementwise(results, given)
        return Computation(BODY, tuple(self.made), root)

    def add(self, opcode: str, shape: Shape, *operands: str, attributes: str = "") -> str:
        """Add an instruction, and return its name."""
        name = f"{opcode}.{len(self.made)}"
        self.made.append(Instruction(name, opcode, text_of(shape), operands, attributes))
        return name

    def _elementwise(self, results: Sequence[Shape], given: Sequence[Instruction]) -> str:
        scalars = len(given) < len(self.line.operands)
        if scalars and len(given) == len(results) == 1 and _is_cut(results[0], given[0].arrays[0]):
            return self.add("dynamic-slice", results[0], given[0].name)
        shapes = [*results, *(each.arrays[0] for each in given)]
        largest = max(shapes, key=lambda shape: shape.elements)
        if len(given) == len(results) == 1 and _is_half(results[0], largest):
            return self._gated(results[0], given[0].name)
        wide = replace(largest, dtype="f32")
        moves = len(given) == 1 and not _computes(results, given[0].arrays[0])
        if moves:
            return self._results(results, given[0].name, given[0].arrays[0])
        return self._results(results, self._sum(wide, given), wide)

    def _results(self, results: Sequence[Shape], name: str, wide: Shape) -> str:
        """Return each result, cut from the same array one after the other."""
        at, names = 0, []
        for each in results:
            names.append(self._result(each, name, wide, at))
            at += each.dims[-1] if each.dims else 0
        return self._tuple(names)

    def _sum(self, wide: Shape, given: Sequence[Instruction]) -> str:
        """Add all operands up, smaller ones by multiplication or as the condition of a choice."""
        total, at = "", 0
        for each in sorted(given, key=lambda one: -one.arrays[0].elements):
            shape, name = each.arrays[0], each.name
            if shape.elements == wide.elements:
                name = self.add("convert", replace(shape, dtype="f32"), name)
                name = self._arranged(replace(shape, dtype="f32"), wide, name)
                if total:
                    total = self.add("add", wide, total, name)
                    name = self.add("convert", replace(wide, dtype="bf16"), total)
                total = name
            elif len(_sizes(shape)) >= len(_sizes(wide)):
                low = "x".join(f"{at if last else 0}_0" for last in _lasts(wide))
                at += shape.dims[-1]
                padded = replace(wide, dtype=shape.dtype)
                name = self.add("pad", padded, name, attributes=f"padding={low}")
                name = self.add("convert", wide, name)
                total = self.add("maximum", wide, total, name) if total else name
            else:
                name = self.add("broadcast", wide, name, attributes=_kept(shape, wide))
                total = self.add("multiply", wide, total or name, name)
        return total or self.add("iota", wide)

    def _arranged(self, shape: Shape, wanted: Shape, name: str) -> str:
        opcode = "copy" if shape.dims == wanted.dims else "reshape"
        same = (shape.dims, shape.order, shape.tiles) == (wanted.dims, wanted.order, wanted.tiles)
        return name if same else self.add(opcode, replace(wanted, dtype=shape.dtype), name)

    def _result(self, wanted: Shape, name: str, wide: Shape, at: int) -> str:
        if wanted.elements == wide.elements:
            name = self._arranged(wide, wanted, name)
        elif _is_part(_sizes(wanted), _sizes(wide)) and len(_sizes(wanted)) < len(_sizes(wide)):
            name = self.add("multiply", wide, name, name)
            return self.add("reduce", wanted, name, name, attributes=_left_out(wanted, wide))
        else:
            starts = [f"[{at if last else 0}:]" for last in _lasts(wanted)]
            part = replace(wanted, dtype=wide.dtype)
            name = self.add("slice", part, name, attributes=f"slice={{{', '.join(starts)}}}")
        return name if wanted.dtype == wide.dtype else self.add("convert", wanted, name)

    def _tuple(self, names: list[str]) -> str:
        shapes = self.line.instruction.shape_text
        if len(names) == 1:
            return names[0]
        self.made.append(Instruction("root", "tuple", shapes, tuple(names)))
        return "root"

    def _gated(self, made: Shape, name: str) -> str:
        """Return the product of one half with the other's activation (SwiGLU)."""
        wide = replace(made, dtype="f32")
        left, right = (self.add("slice", made, name) for _ in range(2))
        gate = self.add("logistic", wide, self.add("convert", wide, left))
        gate = self.add("multiply", wide, gate, self.add("convert", wide, right))
        return self.add("convert", made, self.add("multiply", wide, gate, gate))

    def _matmul(
        self, made: Shape, given: Sequence[Instruction], weights: Instruction, k: int
    ) -> str:
        """Return a matmul by weights [n, k], with what prepares its rows and what follows it."""
        shape = weights.arrays[0]
        n = shape.elements // k
        m = made.elements // n
        rows = Shape(shape.dtype, (m, k), (1, 0))
        others = [each for each in given if each is not weights]
        gated = [each for each in others if each.arrays[0].elements == 2 * m * k]
        before = [each for each in others if each.arrays[0].elements == m * k]
        left = self.add("iota", rows)
        if gated:
            left = self._gated(rows, gated[0].name)
        elif before:
            left = before[0].name if len(before) == 1 else self._sum(rows, before)
        left = self.add("bitcast", rows, left)
        right = self.add("bitcast", Shape(shape.dtype, (n, k), (1, 0)), weights.name)
        attributes = "lhs_contracting_dims={1}, rhs_contracting_dims={1}"
        made_here = self.add("dot", replace(made, dtype="f32"), left, right, attributes=attributes)
        known = {each.name for each in (*gated, *before)}
        for each in others:
            if each.name not in known:
                part = self.add("broadcast", made, each.name)
                made_here = self.add("add", replace(made, dtype="f32"), made_here, part)
        return self.add("convert", made, made_here)


def _places(few: Sequence[int], many: Sequence[int]) -> list[int]:
    """Return where some sizes are among others, in order; those of size 1 are nowhere.

    A last size that is not among them is a part of the last of the others.
    """
    found, at = [], 0
    for size in few:
        if size > 1 and size in many[at:]:
            at = many.index(size, at) + 1
            found.append(at - 1)
    wanted = sum(size > 1 for size in few)
    return [*found, len(many) - 1] if len(found) < wanted and at < len(many) else found


def _kept(few: Shape, many: Shape) -> str:
    return f"dimensions={{{','.join(map(str, _places(few.dims, many.dims)))}}}"


def _left_out(few: Shape, many: Shape) -> str:
    kept = _places(few.dims, many.dims)
    return f"dimensions={{{','.join(str(d) for d in range(len(many.dims)) if d not in kept)}}}"


def _lasts(shape: Shape) -> list[bool]:
    return [dim == len(shape.dims) - 1 for dim in range(len(shape.dims))]


def _is_half(few: Shape, many: Shape) -> bool:
    return 2 * few.elements == many.elements and 2 * few.dims[-1] == many.dims[-1]


def _is_cut(made: Shape, given: Shape) -> bool:
    few, many = made.dims, given.dims
    return len(few) == len(many) and all(a <= b for a, b in zip(few, many, strict=True))


def _computes(results: Sequence[Shape], given: Shape) -> bool:
    """Return False if results only move the elements of one operand, of the same dtype."""
    cut = all(
        each.elements == given.elements or len(_sizes(each)) >= len(_sizes(given))
        for each in results
    )
    return not cut or given.elements == 0


def _matmul(made: Shape, given: Sequence[Instruction]) -> tuple[Instruction, int] | None:
    """Return the weights of a matmul and the dimension that it contracts; None if there is none.

    The weights share one dimension with the result, and have another that the result lacks.
    """
    sizes = _sizes(made)
    if len(sizes) < 2 or len(given) < 2:
        return None
    for each in sorted(given, key=lambda one: -one.arrays[0].bytes):
        own = _sizes(each.arrays[0])
        if len(own) != 2 or each.arrays[0].dtype.startswith(("s32", "f32", "pred")):
            continue
        kept = [size for size in own if size in sizes]
        lost = [size for size in own if size not in sizes]
        if len(kept) == len(lost) == 1 and made.elements % kept[0] == 0:
            return each, lost[0]
    return None
