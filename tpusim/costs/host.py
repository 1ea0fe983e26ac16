"""What the host does for the next step while one runs: it starts it, and makes its batch.

JAX dispatches asynchronously: a step is started while the one before runs ("Asynchronous dispatch",
JAX documentation). A device that is faster than its host waits for it, so what the host does a step
is the least that a step takes, and nothing where the step is longer.
"""

from tpusim.costs.tasks import ON_HOST, Task
from tpusim.hardware import Chip
from tpusim.phase import Phase
from tpusim.program import Program, Transfer, TransferKind

DISPATCH, INPUT = "dispatch", "input"
"""What a breakdown calls the waits for the host: for the step's start, and for its batch."""


def host_tasks(program: Program, chip: Chip) -> tuple[Task, ...]:
    """What the host of a step does beside it, one after another; nothing for less than a step.

    One thread of the host starts the step and makes its batch, as a plain training loop does.
    """
    fed = [op for op in program.body
           if isinstance(op, Transfer) and op.kind is TransferKind.INPUT]  # fmt: skip
    parts = [(DISPATCH, chip.costs.dispatch)] if fed else []
    parts += [(f"make {op.name}", float(op.host_s)) for op in fed]
    return tuple(
        Task(
            name=name, phase=Phase.FORWARD, label=DISPATCH if name == DISPATCH else INPUT,
            stream=ON_HOST, delay_s=seconds,
        )
        for name, seconds in parts
        if seconds
    )  # fmt: skip
