"""Seconds of the vector unit."""

from tpusim.costs.rates import hbm_seconds
from tpusim.hardware import Device
from tpusim.program import Number, Vector
from tpusim.program.numeric import largest


def vector_seconds(flops: Number, device: Device) -> Number:
    """Seconds of `flops` vector operations at the rate that fused groups reach."""
    return flops / (device.vpu_flops * device.costs.vector_efficiency)


def group_seconds(work: Vector, device: Device) -> Number:
    """Seconds of an element-wise group: `max(bytes / HBM, flops / VPU) + launch`.

    Loads and stores run beside the vector unit, so the slower of the two decides. The launch is
    half a product's: no tiles of an array have to be filled and drained.
    Source: "How to Scale Your Model", roofline chapter.
    """
    memory = hbm_seconds(work.read_bytes, work.write_bytes, device)
    return largest(memory, vector_seconds(work.flops, device)) + device.costs.vector_launch
