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
    """What the host does beside a step, one after another; none for a program without an input.

    One thread of the host starts the step and makes its batch, as a plain training loop does.
    """
    tasks: list[Task] = []
    for op in program.body:
        if isinstance(op, Transfer) and op.kind is TransferKind.INPUT:
            tasks += [_task(DISPATCH, DISPATCH, chip.costs.dispatch)] if not tasks else []
            tasks += [_task(f"make {op.name}", INPUT, float(op.host_s))]
    return tuple(task for task in tasks if task.delay_s)


def _task(name: str, label: str, seconds: float) -> Task:
    return Task(name=name, phase=Phase.FORWARD, label=label, stream=ON_HOST, delay_s=seconds)
