"""Seconds of any work, by its type."""

from collections.abc import Callable, Mapping

from tpusim.costs.compute import (
    attention_seconds,
    estimate_seconds,
    group_seconds,
    step_matmul_seconds,
)
from tpusim.costs.convolution import convolution_seconds
from tpusim.hardware import Device
from tpusim.program import (
    AttentionWork,
    CombinedWork,
    ConvolutionWork,
    EstimatedWork,
    MatmulWork,
    Number,
    VectorWork,
    Work,
)

_SECONDS_OF: Mapping[type, Callable[..., Number]] = {
    MatmulWork: step_matmul_seconds,
    ConvolutionWork: convolution_seconds,
    AttentionWork: attention_seconds,
    VectorWork: group_seconds,
    EstimatedWork: estimate_seconds,
}


def work_seconds(work: Work, device: Device) -> Number:
    """Return the seconds of an operation of a step with no other beside it; its parts launch once.

    Raise PlanError if the chip has no rate for a dtype.
    """
    if isinstance(work, CombinedWork):
        launches = (len(work.parts) - 1) * device.costs.op_launch
        return sum(work_seconds(part, device) for part in work.parts) - launches
    return _SECONDS_OF[type(work)](work, device)
