"""The layers of a forward pass as one row: scans over layers, and the operations between them.

A pipeline cuts the row between layers. Scans may follow one another at once (dense layers, then
those with experts), or be joined by other operations (an encoder's norm and the embedding of the
target, in front of a decoder).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from tpusim.base.errors import PlanError
from tpusim.graph.graph import Graph
from tpusim.graph.ops import Op, Scan
from tpusim.graph.remat import LAYER_IN
from tpusim.graph.tensor import Tensor, TensorRole


@dataclass(frozen=True)
class LayerRow:
    """The scans over layers of a forward pass.

    scans: in their order, each with one tensor that its layers pass on.
    joints: the operations before each scan, and those after the last one.
    """

    graph: Graph
    scans: tuple[Scan, ...]
    joints: tuple[tuple[Op, ...], ...]

    @cached_property
    def bounds(self) -> tuple[int, ...]:
        """The first layer of each scan, and the number of all layers."""
        return (0, *accumulate(scan.trips * len(layer_inputs(scan)) for scan in self.scans))

    @property
    def layers(self) -> int:
        """The number of layers."""
        return self.bounds[-1]

    def scan_of(self, layer: int) -> int:
        """Return the number of the scan that has a layer, or the layer behind a cut."""
        return max(n for n, first in enumerate(self.bounds[:-1]) if first <= layer)

    def begins_at(self, layer: int) -> int | None:
        """Return the number of the scan of which a layer is the first, if it is."""
        return self.bounds[:-1].index(layer) if layer in self.bounds[:-1] else None

    def passed_on(self, cut: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return what crosses a cut before layer `cut`: the layers' tensor, and all others.

        The others are made before the cut and read behind it, as an encoder's result by the layers
        of a decoder.
        """
        begun = self.begins_at(cut)
        if begun is None:
            inside = self.scan_of(cut)
            scan = self.scans[inside]
            before, after = self._sections(2 * inside + 1)
            return carried_into(scan), _live(before, (*scan.shared, *_reads(after[1:])))
        before, after = self._sections(2 * begun)
        carried = self.scans[begun - 1].carries[0][3]
        others = _live(before, _reads(after))
        return carried, tuple(tensor for tensor in others if tensor.name != carried.name)

    def across(self, first: int, last: int) -> tuple[Tensor, ...]:
        """Return what is made before the scans of some layers and read behind them, not by them."""
        begin, end = self.scan_of(first), self.scan_of(last - 1)
        before, after = self._sections(2 * begin + 1)
        own = after[: 2 * (end - begin) + 1]
        read = {tensor.name for tensor in _reads(own)}
        live = _live(before, _reads(after[len(own) :]))
        return tuple(tensor for tensor in live if tensor.name not in read)

    def read_behind(self, joint: int) -> frozenset[str]:
        """Return the names of all that is read behind a joint."""
        return frozenset(tensor.name for tensor in _reads(self._sections(2 * joint + 1)[1]))

    def _sections(self, at: int) -> tuple[list[tuple[Op, ...]], list[tuple[Op, ...]]]:
        """Return the joints and scans in turn, those before number `at` and the rest."""
        rest = zip(self.scans, self.joints[1:], strict=True)
        every = [self.joints[0], *(each for scan, joint in rest for each in ((scan,), joint))]
        return every[:at], every[at:]

    @cached_property
    def trained(self) -> frozenset[str]:
        """The names of the tensors that the gradient of the loss reaches."""
        return frozenset(_reached(self.graph.ops, {self.graph.loss.name}))


def layer_row(graph: Graph) -> LayerRow:
    """Return the layers of a forward pass. Raise PlanError if they are not one row."""
    scans = tuple(op for op in graph.ops if isinstance(op, Scan) and op.over_layers)
    if not scans or any(len(s.carries) != 1 or s.slices or s.stacks for s in scans):
        raise PlanError(
            f"{graph.name} cannot be cut into stages: its layers are not one row that passes on "
            "one tensor; write stage = 1"
        )
    places = [graph.ops.index(scan) for scan in scans]
    starts, ends = (0, *(place + 1 for place in places)), (*places, len(graph.ops))
    joints = tuple(graph.ops[a:b] for a, b in zip(starts, ends, strict=True))
    return LayerRow(graph, scans, joints)


def layer_count(graph: Graph) -> int:
    """Return the number of layers of a forward pass."""
    return layer_row(graph).layers


def carried_into(scan: Scan) -> Tensor:
    """Return what a cut between the layers of a scan passes on, by the name of the first input.

    The first layer may be given a frozen tensor, where those behind a cut have a gradient.
    """
    before, entered, _, _ = scan.carries[0]
    return replace(before, frozen=entered.frozen)


def layer_inputs(scan: Scan) -> tuple[Tensor, ...]:
    """Return the input of each layer of an iteration."""
    made = [t for op in scan.body for t in op.outputs if t.short == LAYER_IN]
    return (scan.carries[0][1], *made)


def read_of_outside(ops: Iterable[Op]) -> tuple[Tensor, ...]:
    """Return the activations that operations read and none of them makes."""
    own = {tensor.name for op in ops for tensor in op.outputs}
    read = (t for op in ops for t in op.inputs if t.role is TensorRole.ACTIVATION)
    return tuple({t.name: t for t in read if t.name not in own}.values())


def _reads(sections: Iterable[Sequence[Op]]) -> tuple[Tensor, ...]:
    return tuple(tensor for ops in sections for op in ops for tensor in op.inputs)


def _live(before: Iterable[Sequence[Op]], reads: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Return the tensors that operations make and others read, in the order in which they are made.

    They have the dimensions of their maker, as readers may view them under other names.
    """
    read = {tensor.name for tensor in reads}
    made = (tensor for ops in before for op in ops for tensor in op.outputs)
    return tuple(tensor for tensor in made if tensor.name in read)


def _reached(ops: Sequence[Op], wanted: set[str]) -> set[str]:
    """Return the names of tensors of which gradients are made, given those that start from."""
    found = set(wanted)
    for op in reversed(ops):
        if found.isdisjoint(tensor.name for tensor in op.outputs):
            continue
        if isinstance(op, Scan):
            found |= _reached_by_scan(op, found)
        else:
            found |= {tensor.name for tensor in op.inputs if tensor.differentiable}
    return found


def _reached_by_scan(scan: Scan, found: set[str]) -> set[str]:
    """Return the tensors outside of a scan to which its body passes gradients."""
    left = {inside.name for _, _, inside, outside in scan.carries if outside.name in found}
    left |= {inside.name for inside, outside in (*scan.stacks, *scan.sums) if outside.name in found}
    inner = _reached(scan.body, left)
    pairs = [(before, first) for before, first, _, _ in scan.carries]
    pairs += [*scan.slices, *((tensor, tensor) for tensor in scan.shared)]
    return {outside.name for outside, inside in pairs if inside.name in inner}
