"""The frame of a forward pass alone: its weights, states and input, and nothing behind it."""

from dataclasses import dataclass

from tpusim.frames.body_frame import cast_weights, infeed, stored_states, stored_weights
from tpusim.graph import Graph
from tpusim.lowering import (
    AskedPlace,
    BodyChoices,
    BodyLowerer,
    LoweringDecisions,
    cast_before,
    check_dtypes,
)
from tpusim.partition import PartitionedGraph, Sizes
from tpusim.program import Program


@dataclass(frozen=True, slots=True)
class ForwardFrame:
    """What stands around a forward pass that no backward pass follows, on one device.

    choices: of its body.
    sizes: of the dimensions of its graph and of the mesh axes.
    """

    choices: BodyChoices
    sizes: Sizes
    place: AskedPlace

    def program(self, graph: Graph, partitioned: PartitionedGraph) -> Program:
        """Return the program: input, casts of weights that are stored in another dtype, and body.

        Weights and states stay in HBM from step to step. Raise PlanError for a matmul in a dtype
        that the chip has no rate for.
        """
        numerics = self.choices.numerics
        check_dtypes(numerics, self.place.pod.chip)
        decisions = LoweringDecisions(partitioned, self.sizes, self.choices, self.place)
        (body,), _ = BodyLowerer(self.sizes, partitioned, decisions).passes()
        shards = cast_before(partitioned, numerics)
        weights = tuple(w for w in partitioned.weights if w.name in shards)
        cast = cast_weights(weights, numerics, self.sizes)
        return Program(
            name=graph.name,
            axes=tuple(self.choices.sharding.mesh.items()),
            body=(infeed(graph, partitioned, self.sizes), *((cast,) if cast else ()), *body),
            resident=(
                *stored_weights(partitioned.weights, numerics, self.sizes),
                *stored_states(partitioned.states, self.sizes),
            ),
        )
