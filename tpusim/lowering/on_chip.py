"""Buffers that a recurrence keeps on the chip: those that all of its steps read, or add to.

The compiler holds the weights of a step and the sums of their gradients in VMEM, or in CMEM where a
chip has it, throughout the loop: all twenty weights and all ten sums of GNMT's layers on v5e 2x4
with 128 sequences a device and on v4 2x2x2 with 32 (libtpu 0.0.42.1). A step then moves none of
them, which decides its time where few sequences are on a device. Not counted: that they enter and
leave the chip, once a loop.
"""

from collections.abc import Mapping
from dataclasses import replace

from tpusim.hardware import Device
from tpusim.lowering.op_work import Buffers, buffer_bytes
from tpusim.partition import ComputeNode, LoopNode, Sizes
from tpusim.program import (
    ConvolutionWork,
    MatmulWork,
    Number,
    VectorWork,
    Work,
    largest,
)


def kept_on_chip(
    loop_node: LoopNode, sizes: Sizes, buffers: Buffers, device: Device
) -> dict[str, int]:
    """Return the buffers of the program around a recurrence that stay on the chip in its loop.

    Each is given with 1. The smallest ones are, as many as fit; none of other loops, whose
    iterations share little.
    """
    room = device.vmem_bytes + device.cmem_bytes
    kept: dict[str, int] = {}
    if loop_node.scan.steps:
        held = {key: buffer_bytes(buffers[key], sizes) for key in loop_node.outside}
        for key in sorted(held, key=lambda key: float(held[key])):
            room -= float(held[key])
            if room < 0:
                break
            kept[key] = 1
    return kept


def without_on_chip(
    work: Work, compute: ComputeNode, kept: Mapping[str, Number], sizes: Sizes, buffers: Buffers
) -> Work:
    """Return the work of an operation with its traffic to HBM only.

    kept: 1 for each buffer that is on the chip; may be arrays of 1 and 0.
    """
    if kept.keys().isdisjoint((*compute.reads, *compute.writes)):
        return work
    if not isinstance(work, ConvolutionWork | MatmulWork | VectorWork):
        return work
    read, written = (
        sum(kept[key] * buffer_bytes(buffers[key], sizes) for key in kept if key in keys)
        for keys in (compute.reads, compute.writes)
    )
    return replace(
        work,
        read_bytes=largest(work.read_bytes - read, 0),
        write_bytes=largest(work.write_bytes - written, 0),
    )
