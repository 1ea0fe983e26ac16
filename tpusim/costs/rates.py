"""What a device reaches: matrix rate by dtype, and bytes a second of HBM."""

from tpusim.errors import PlanError, nearest
from tpusim.hardware import Device
from tpusim.program import Number


def matrix_rate(device: Device, dtype: str) -> float:
    """Peak FLOP/s of the device's systolic arrays on operands of `dtype`.

    Raises PlanError where the chip has no rate for the dtype.
    """
    rate = device.flops.get(dtype)
    if rate is None:
        raise PlanError(
            f"dtype {dtype!r}: {device.name} has no matrix rate for it; "
            f"{nearest(dtype, device.flops)}"
        )
    return rate


def hbm_seconds(read_bytes: Number, write_bytes: Number, device: Device) -> Number:
    """Seconds in which the bytes pass between HBM and the core at the rate that copies reach."""
    rate = device.hbm_bandwidth * device.costs.hbm_efficiency
    return (read_bytes + write_bytes) / rate
