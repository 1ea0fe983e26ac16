"""Operations of a profile, by their HLO lines: fusions, relayouts, kernels and collectives."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations, product
from math import gcd, prod
from typing import Any

from assumed_bodies import text_of, with_body
from instruction_line import InstructionLine, read_instruction

from tpusim.compiler.hlo.attributes import call_target
from tpusim.compiler.hlo.module import HloModule, Instruction
from tpusim.compiler.hlo.opcodes import COLLECTIVE_OPCODES
from tpusim.compiler.hlo.shapes import HBM_SPACE, Shape, flatten_shape, parse_shape
from tpusim.compiler.to_program.collectives import movement_of
from tpusim.compiler.work.instruction_work import instruction_work
from tpusim.costs import collective_seconds, work_seconds
from tpusim.hardware import DIE, Chip, Slice, Span, load_chip

HLO_LINE = re.compile(r"(?:^|\| )(?P<line>%?[\w.\-]* ?= .*?)\s*(?P<facts>\(n=\d+;[^()]*\))?$")
_FACT = re.compile(r"(hbm|vmem) ([\d.]+) MB")
_BEGUN = re.compile(r"\s*\w+\[[\d,]+\]")
SLICE, HOST = re.compile(r"\d+(?:x\d+)+"), ("2", "2", "1")
"""The slice of a row; without one, the chips of a host."""
ON_CHIP = 1
MB, ROUNDED = 1e6, 1e4
"""Bytes of a megabyte, and those to which the tables round."""
MOST_DEVICES = 2**20
MOST_MISSING = 6
"""No line lacks more operands."""


def whole_line(params: str, measured_us: float, lines: Sequence[tuple[str, float]]) -> str:
    """Return the line of a profile that a row's begins like, of closest time; "" if none does.

    lines: of a profile, with their microseconds.
    """
    found = HLO_LINE.search(params)
    start = found["line"] if found else "?"
    alike = [(abs(took - measured_us), text) for text, took in lines if _plain(text, start)]
    return min(alike)[1] if alike else ""


def _plain(text: str, start: str) -> bool:
    """Return True if a line, without names and channels, begins as a row's does."""
    return _NAMES.sub("", text).startswith(_NAMES.sub("", start))


_NAMES = re.compile(r"(?<=%)[\w.\-]+|channel_id=\d+, ")


def hlo_line(measured: Any) -> float:
    """Return the predicted seconds of a row whose parameters, or whose profile, have a line."""
    found = HLO_LINE.search(measured.params)
    if not found:
        raise ValueError(f"{measured.params[:60]!r} has no HLO line")
    line = read_instruction(measured.line or found["line"])
    chip = load_chip(measured.chip)
    if not measured.line:
        line = completed(line, dict(_FACT.findall(found["facts"] or "")))
    line = replace(line, instruction=_numbered(line.instruction))
    given = line.instruction.attributes
    multiplies = measured.kind.startswith("convolution") or "kind=kOutput" in given
    module = with_body(line, _devices(given, chip), multiplies)
    if line.instruction.opcode in COLLECTIVE_OPCODES:
        return _collective(module, line.instruction, chip, measured.slice)
    work = instruction_work(module, module.main, module.main[module.main.root])
    return float(work_seconds(work.costed_by("model", chip.device.flops), chip.device))


def completed(line: InstructionLine, facts: dict[str, str]) -> InstructionLine:
    """Return a line that was cut, with operands for the megabytes that those it shows lack."""
    shown = [shape for each in line.operands for shape in each.arrays]
    shapes = [*shown, *line.instruction.arrays]
    begun = _BEGUN.match(line.rest)
    cut = flatten_shape(parse_shape(begun[0].strip())) if begun else ()
    operands = list(line.operands)
    for name, space in (("hbm", HBM_SPACE), ("vmem", ON_CHIP)):
        known = sum(shape.bytes for shape in shapes if shape.space == space)
        missing = float(facts.get(name, 0)) * MB - known
        for shape in missing_operands(missing, shapes, cut):
            number, text = str(len(operands)), text_of(replace(shape, space=space))
            operands.append(Instruction(f"operand.{number}", "parameter", text, literal=number))
    attributes = line.instruction.attributes
    if line.instruction.opcode == "custom-call" and not call_target(line.instruction):
        attributes = 'custom_call_target="tpu_custom_call"'
    names = tuple(each.name for each in operands)
    made = replace(line.instruction, operands=names, attributes=attributes)
    return InstructionLine(made, tuple(operands))


def missing_operands(
    missing: float, shapes: Sequence[Shape], cut: Sequence[Shape] = ()
) -> Sequence[Shape]:
    """Return operands of so many bytes, alike: as one that is shown, or of its dimensions.

    cut: what is shown of the operand at which the line ends; it comes first.

    If none has a part of the bytes, as many as there are bytes for of those shown, largest first.
    """
    if missing < ROUNDED:
        return ()
    alike = sorted({s for s in shapes if s.dims}, key=lambda shape: -shape.bytes)
    counts = range(1, MOST_MISSING)
    known = (*product(cut, counts), *((s, n) for n in counts for s in (*alike, *_made_of(shapes))))
    for shape, count in known:
        if abs(missing - count * shape.bytes) < ROUNDED:
            return (shape,) * count
    found: list[Shape] = []
    for shape in alike:
        while shape.bytes <= missing and len(found) < MOST_MISSING:
            found.append(shape)
            missing -= shape.bytes
    return found


def _made_of(shapes: Sequence[Shape]) -> Iterator[Shape]:
    """Yield matrices of two dimensions that are shown, and rows of one of them."""
    sizes = dict.fromkeys(size for shape in shapes for size in shape.dims if size > 1)
    for dims in (*permutations(sizes, 2), *((size,) for size in sizes)):
        yield Shape("bf16", dims, tuple(range(len(dims)))[::-1])


def _numbered(instruction: Instruction) -> Instruction:
    """Return a collective with the channel, over all devices, that tables leave out of its line."""
    if instruction.opcode not in COLLECTIVE_OPCODES:
        return instruction
    channel = "channel_id=1, use_global_device_ids=true, "
    return replace(instruction, attributes=channel + instruction.attributes)


def _devices(attributes: str, chip: Chip) -> int:
    """Return the number of devices that a line's groups speak of, at least those of a chip."""
    listed = re.search(r"replica_groups=(\{\{.*?\}\})", attributes)
    counted = re.search(r"<=\[([\d,]+)\]", attributes)
    named = 1
    if listed:
        named += max(map(int, re.findall(r"\d+", listed[1])), default=0)
    elif counted:
        named = prod(map(int, counted[1].strip(",").split(",")))
    if named > MOST_DEVICES:
        raise ValueError(f"groups of {named} devices are more than any slice has")
    return max(chip.devices, named)


def _collective(module: HloModule, instruction: Instruction, chip: Chip, place: str) -> float:
    """Return the seconds of a collective over the devices that its groups name."""
    movement = movement_of(module, module.main, instruction)
    if movement is None or movement.collective is None:
        raise ValueError(f"{instruction.opcode} is no collective")
    size = movement.groups.size if movement.groups else chip.devices
    shape = SLICE.match(place)
    pod = Slice(chip, shape[0] if shape else "x".join(HOST[: chip.ici_dimensions]))
    spans = _spans(size, chip, pod.topology.dims)
    if prod(span.size for span in spans) != size:
        raise ValueError(f"a group of {size} devices is no part of {pod}")
    return float(collective_seconds(movement.collective, movement.bytes, spans, chip, pod.topology))


def _spans(size: int, chip: Chip, dims: Sequence[int]) -> list[Span]:
    """Return the parts of a slice on which a group of neighbours is, the devices of a chip first.

    A dimension that is as long as the group comes before the others.
    """
    lengths = {DIE: chip.devices} | dict(enumerate(dims))
    found = []
    for dim in sorted(lengths, key=lambda dim: (dim != DIE, lengths[dim] != size)):
        part = gcd(size, lengths[dim])
        size //= part
        found += [Span(dim, part)] if part > 1 else []
    return found
