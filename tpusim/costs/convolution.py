"""Seconds of a convolution, as the matmul that it is."""

from tpusim.costs.matmul import matmul_seconds
from tpusim.hardware import Device
from tpusim.program import Convolution, Matmul, Number


def as_matmul(work: Convolution) -> Matmul:
    """The implicit matmul: m = batch x positions, k = taps x in_channels, n = out_channels.

    The patches are formed on the way into the array, so HBM sees the image once and not once a tap.
    """
    return Matmul(
        batch=1,
        m=work.batch * work.positions,
        k=work.taps * work.in_channels,
        n=work.out_channels,
        dtype=work.dtype,
        read_bytes=work.read_bytes,
        write_bytes=work.write_bytes,
        epilogue_flops=work.epilogue_flops,
    )


def convolution_seconds(work: Convolution, device: Device) -> Number:
    """Seconds of a convolution: those of its implicit matmul."""
    return matmul_seconds(as_matmul(work), device)
