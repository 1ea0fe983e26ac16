"""Seconds of what the compiler estimated itself."""

from tpusim.hardware import Device
from tpusim.program import Estimate, Number


def estimate_seconds(work: Estimate, device: Device) -> Number:
    """Seconds of the compiler's cycles: `cycles / clock`.

    They are those of the whole device, of both cores where it has two, and a launch is in them: the
    constant of the fit to estimates of 269 matmuls is what `op_launch` is (libtpu 0.0.42.1).
    """
    return work.cycles / device.clock
