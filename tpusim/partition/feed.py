"""What the host feeds a step: its batch, copied to the device while the step before runs."""

from tpusim.graph import Graph, Role, walk
from tpusim.partition.layout import Local
from tpusim.partition.plan import Plan
from tpusim.partition.sizes import Sizes
from tpusim.partition.template import Template
from tpusim.phase import Phase
from tpusim.program import Transfer, TransferKind


def batch_copy(graph: Graph, template: Template, plan: Plan, sizes: Sizes) -> Transfer:
    """The copy of the next step's batch: one device's part of each input, of all microbatches.

    Devices that share a part are each sent it, as each has its own copy. (The gradient of the loss
    is an input of the backward pass, but a constant.)
    """
    read = dict.fromkeys(tensor for op, _ in walk(graph.ops) for tensor in op.inputs)
    part = sum(
        sizes.nbytes(Local(tensor.dims, template.layouts[tensor.name]), tensor.dtype)
        for tensor in read
        if tensor.role is Role.INPUT and not tensor.primal
    )
    return Transfer(
        name="input", phase=Phase.FORWARD, kind=TransferKind.INPUT, scope="input",
        bytes=part * plan.microbatches, host_s=plan.input_s,
    )  # fmt: skip
