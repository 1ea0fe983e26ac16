"""The partitioned program: plain data between the front ends and the engine.

It knows no model and no hardware. A plan and an HLO file both become one of these.
"""

from tpusim.phase import Phase
from tpusim.program.files import dumps, loads
from tpusim.program.ops import (
    Alloc,
    Barrier,
    Call,
    Collective,
    CollectiveKind,
    Compute,
    Dep,
    Flops,
    Loop,
    Mode,
    Op,
    Program,
    Segment,
    Send,
    Single,
    TopOp,
    Transfer,
    TransferKind,
    Wait,
    counted,
)
from tpusim.program.schedule import Pass, Schedule, Slot
from tpusim.program.timing import StuckError, Timed, peak_alive, timed, unit_times
from tpusim.program.work import (
    Attention,
    Convolution,
    Estimate,
    Matmul,
    Number,
    Several,
    Vector,
    Work,
)

__all__ = [
    "Alloc",
    "Attention",
    "Barrier",
    "Call",
    "Collective",
    "CollectiveKind",
    "Compute",
    "Convolution",
    "Dep",
    "Estimate",
    "Flops",
    "Loop",
    "Matmul",
    "Mode",
    "Number",
    "Op",
    "Pass",
    "Phase",
    "Program",
    "Schedule",
    "Segment",
    "Send",
    "Several",
    "Single",
    "Slot",
    "StuckError",
    "Timed",
    "TopOp",
    "Transfer",
    "TransferKind",
    "Vector",
    "Wait",
    "Work",
    "counted",
    "dumps",
    "loads",
    "peak_alive",
    "timed",
    "unit_times",
]
