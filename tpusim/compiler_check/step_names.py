"""The names of a plan's graph, and the operation of the graph that each operation belongs to."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tpusim.base.phase import Phase
from tpusim.graph import Gather, Graph, Op, Pointwise, Tensor, TensorRole, walk
from tpusim.partition import Layout
from tpusim.partition.propagate import layouts
from tpusim.pipeline.planned_step import checked_rules, planned_graph
from tpusim.plan import stage_plan
from tpusim.program import Program, walk_ops
from tpusim.results import PlanResult

EMBEDDING = "embedding"
"""The name under which the lookup, its table and all that is done for them are compared."""

_SUFFIX = re.compile(
    r"/(?:d|dx|dw|dw\d|chunk|add|place|cast|quantise|sums|begin"
    r"|pick|softmax|flatten|scatter|convert|reshape|turn)$"
)
_GRADIENT = re.compile(r"d\((.*)\)")
_LINE = re.compile(r"(?P<file>.*):(?P<line>\d+)$")


@dataclass(frozen=True)
class StepNames:
    """The forward operations of a plan's graph, and what they read and make.

    operations: each with its name.
    makers: the operation that makes each tensor.
    runs: times that each operation runs in a step.
    sizes: of the dimensions of one microbatch.
    layouts: of each tensor of the forward pass.
    """

    plan: PlanResult
    operations: Mapping[str, Op]
    makers: Mapping[str, str]
    runs: Mapping[str, int]
    sizes: Mapping[str, int]
    layouts: Mapping[str, Layout]

    @classmethod
    def of(cls, plan: PlanResult) -> "StepNames":
        """Return the names of the graph that a plan's result comes from."""
        graph = planned_graph(plan.model, plan.plan)
        inner = stage_plan(plan.plan) if plan.plan.active_schedule else plan.plan
        found = layouts(graph, inner.sharding, checked_rules(inner, graph))
        return cls.of_graph(plan, graph, found)

    @classmethod
    def of_graph(cls, plan: PlanResult, graph: Graph, found: Mapping[str, Layout]) -> "StepNames":
        """Return the names of a graph, with the layout of each of its tensors."""
        forward = [(op, n) for op, n in walk(graph.ops) if op.phase is Phase.FORWARD]
        runs: Counter[str] = Counter()
        for op, times in forward:
            runs[op.name] += times * plan.plan.microbatches
        return cls(
            plan,
            {op.name: op for op, _ in forward},
            {tensor.name: op.name for op, _ in forward for tensor in op.outputs},
            runs,
            graph.sizes,
            found,
        )

    @cached_property
    def weights(self) -> frozenset[str]:
        """The names of the weights."""
        tensors = (tensor for op in self.operations.values() for tensor in op.inputs)
        return frozenset(tensor.name for tensor in tensors if tensor.role is TensorRole.PARAM)

    @cached_property
    def readers(self) -> Mapping[str, str]:
        """The first operation that reads each weight."""
        found: dict[str, str] = {}
        for name, op in self.operations.items():
            for tensor in op.inputs:
                if tensor.role is TensorRole.PARAM:
                    found.setdefault(tensor.name, name)
        return found

    @cached_property
    def lookups(self) -> frozenset[str]:
        """The embedding: operations that look up rows of a weight, their tables and results."""
        found: set[str] = set()
        for op in self.operations.values():
            if isinstance(op, Gather) and op.table.role is TensorRole.PARAM:
                found |= {op.name, op.table.name, *(tensor.name for tensor in op.outputs)}
        return frozenset(found)

    @cached_property
    def sums(self) -> Mapping[str, str]:
        """The sum that alone reads a tensor, by the tensor's name: both have one gradient."""
        readers: dict[str, list[Op]] = {}
        for op in self.operations.values():
            for tensor in op.inputs:
                readers.setdefault(tensor.name, []).append(op)
        return {
            name: op.outputs[0].name
            for name, (op, *others) in readers.items()
            if not others and isinstance(op, Pointwise) and op.linear
        }

    def tensors(self, operation: str) -> tuple[Tensor, ...]:
        """Return what an operation makes and reads, its results first; nothing for no operation."""
        op = self.operations.get(operation)
        return (*op.outputs, *op.inputs) if op else ()

    def elements(self, tensor: Tensor, whole: tuple[str, ...]) -> float:
        """Return the elements of a tensor on one device if it is whole along the axes `whole`."""
        layout = self.layouts.get(tensor.name, ())
        mesh = self.plan.plan.mesh
        shards = prod(mesh.get(a, 1) for axes in layout for a in axes if a not in whole)
        return prod(self.sizes[dim] for dim in tensor.dims) / shards

    def devices(self, axes: tuple[str, ...]) -> int:
        """Return the devices of a group over axes of the mesh; axes that it lacks count once."""
        return prod(self.plan.plan.mesh.get(axis, 1) for axis in axes)

    def planned(self, name: str) -> str:
        """Return the forward operation behind a name of the plan's program; empty for none.

        >>> names.planned("layer/wq/dw/chunk")
        'layer/wq'
        """
        while name not in self.operations:
            shorter = _SUFFIX.sub("", name)
            if shorter == name:
                return ""
            name = shorter
        return name


def tensor_of(scope: str) -> tuple[str, bool]:
    """Return the tensor that a planned collective moves, and whether it is its gradient.

    >>> tensor_of("d(layer/wq)")
    ('layer/wq', True)
    """
    found = _GRADIENT.fullmatch(scope)
    return (found[1], True) if found else (scope, False)


@dataclass(frozen=True, slots=True)
class SourceNames:
    """The operations of the graph, by the line of the exported program.

    file: name of the exported file; lines of other files mean nothing.
    """

    file: str
    lines: Mapping[int, str]

    @classmethod
    def of(cls, program: Program, lines: Mapping[int, str]) -> "SourceNames":
        """Return the names of a program's lines, whose file most of its operations come from."""
        files: Counter[str] = Counter()
        for op, times in walk_ops(program.body, program.segments):
            if found := _LINE.match(getattr(op, "source", "")):
                files[found["file"]] += times if int(found["line"]) in lines else 0
        return cls(max(files, key=lambda name: files[name], default=""), lines)

    def at(self, *places: str) -> str:
        """Return the operation of the graph at the first `file.py:line` that has one, or empty."""
        for place in places:
            found = _LINE.match(place)
            if found and found["file"] == self.file and int(found["line"]) in self.lines:
                return self.lines[int(found["line"])]
        return ""
