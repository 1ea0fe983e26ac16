"""Names of their own for operations and tensors of one program that several parts make alike."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from tpusim.lowering import names
from tpusim.pipeline.segments import LoweredPart, allocated
from tpusim.program import Alloc, Loop, Number, Op

Renaming: TypeAlias = Callable[[str], str]


class NamedOps(NamedTuple):
    """Operations, and what is allocated around them."""

    ops: tuple[Op, ...]
    allocs: tuple[Alloc, ...]


@dataclass(slots=True)
class OwnNames:
    """The names that are taken; who comes later marks those of its own that are."""

    taken: set[str] = field(default_factory=set)

    def of_part(self, part: LoweredPart) -> LoweredPart:
        """Return a part whose operations and tensors have names of their own."""
        named = self._renaming(part.all_ops, (), part.part.label)
        return _renamed_part(part, named, named)

    def of_ops(self, ops: Sequence[Op], allocs: Sequence[Alloc], number: int) -> NamedOps:
        """Return the operations of a loop, counted from 0, and the allocations around it."""
        named = self._renaming(ops, allocs, f"loop {number + 1}")
        held = tuple(replace(alloc, tensor=named(alloc.tensor)) for alloc in allocs)
        return NamedOps(_renamed(ops, named, named), held)

    def _renaming(self, ops: Sequence[Op], allocs: Sequence[Alloc], mark: str) -> Renaming:
        """Return the renaming of what is taken already, and take the rest."""
        tensors = (alloc.tensor for alloc in (*allocated(ops), *allocs))
        own = {*names(ops), *tensors}
        clash = own & self.taken
        self.taken |= own
        return _marking(clash, mark)


def with_own_sizes(parts: Iterable[LoweredPart]) -> tuple[LoweredPart, ...]:
    """Return parts whose tensors of one name have one size: others have the part's label too."""
    sizes: dict[str, Number] = {}
    found = []
    for part in parts:
        allocs = tuple(allocated(part.all_ops))
        clash = {a.tensor for a in allocs if sizes.setdefault(a.tensor, a.bytes) != a.bytes}
        own = _renamed_part(part, str, _marking(clash, part.part.label)) if clash else part
        found.append(own)
    return tuple(found)


def _marking(names: Collection[str], mark: str) -> Renaming:
    return lambda name: f"{name} ({mark})" if name in names else name


def _renamed_part(part: LoweredPart, op_name: Renaming, tensor: Renaming) -> LoweredPart:
    segments = {
        kind: replace(segment, body=_renamed(segment.body, op_name, tensor))
        for kind, segment in part.segments.items()
    }
    held = {weight: tensor(name) for weight, name in part.gradients.held.items()}
    after = {weight: op_name(name) for weight, name in part.gradients.after.items()}
    return replace(
        part, segments=segments, gradients=replace(part.gradients, held=held, after=after)
    )


def _renamed(ops: Sequence[Op], op_name: Renaming, tensor: Renaming) -> tuple[Op, ...]:
    """Return operations with other names, and with other names for the tensors that they hold."""

    def changed(op: Op) -> Op:
        op = replace(
            op,
            name=op_name(op.name),
            frees=tuple(map(tensor, op.frees)),
            allocs=tuple(replace(alloc, tensor=tensor(alloc.tensor)) for alloc in op.allocs),
        )
        if isinstance(op, Loop):
            return op
        return replace(op, deps=tuple(replace(dep, op=op_name(dep.op)) for dep in op.deps))

    return map_ops(ops, changed)


def map_ops(body: Sequence[Op], changed: Callable[[Op], Op]) -> tuple[Op, ...]:
    """Change all operations of a body, also within its loops."""
    return tuple(
        replace(loop, body=map_ops(loop.body, changed))
        if isinstance(loop := changed(op), Loop)
        else loop
        for op in body
    )
