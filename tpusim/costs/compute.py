"""Seconds of the work of one operation on a device.

The equations take numbers or arrays of them; `convolution` and `attention` have those of
convolutions and of attention kernels, and `program_costs` picks one by the type of the work.
"""

from tpusim.base.errors import PlanError, nearest
from tpusim.hardware import Device
from tpusim.program import (
    SUBLANES,
    EstimatedWork,
    MatmulWork,
    Number,
    VectorWork,
    equivalent_matmul,
    grid_steps,
    largest,
    power_sum,
    round_up,
    smallest,
)

BYTE_SUBLANES = 32
"""Rows of a memory tile of 8-bit elements; 16-bit and 32-bit ones have `SUBLANES` (JAX's
`tpu_info`, `get_sublane_tiling`).
"""

BYTE_DTYPES = ("int8", "fp8")

READ_LATENCY = 0.57
"""Share of an element-wise group's launch that is the latency of reading HBM; the rest is that of
writing. On 7x groups of a few bytes take 0.68 to 0.77 us from HBM to VMEM, 0.50 to 0.61 from VMEM
to HBM, and 1.24 to 1.30 from HBM to HBM (profiles of tpu-inference, `experiments/operations`).
"""


ADDITION_CYCLES = 10.1
"""Cycles in which a core adds 128 elements of a row to one that an index names: load, addition and
store, and only then the next (libtpu 0.0.11.1 of March 2025, 124,276 bundles for 384 rows of 4096
on v5p; libtpu 0.0.42.1 overlaps them, 15,736 bundles)."""


def matrix_rate(device: Device, dtype: str) -> float:
    """Return the peak FLOP/s of the device's systolic arrays on operands of `dtype`.

    Raise PlanError if the chip has no rate for the dtype.
    """
    rate = device.flops.get(dtype)
    if rate is None:
        raise PlanError(
            f"dtype {dtype!r}: {device.name} has no matrix rate for it; "
            f"{nearest(dtype, device.flops)}"
        )
    return rate


def copy_bandwidth(device: Device) -> float:
    """Return the HBM bandwidth that copies reach, in bytes per second."""
    return device.hbm_bandwidth * device.costs.hbm_efficiency


def hbm_seconds(read_bytes: Number, write_bytes: Number, device: Device) -> Number:
    """Return the seconds to move the bytes: `(read + write) / r + 2 min(read, write) (1/c - 1/r)`.

    c: `copy_bandwidth`, at which as many bytes are read as written.
    r: the rate of reads alone or writes alone, `hbm_read`; c where the chip does not state it.

    The memory's bus changes its direction for as many bytes as the smaller stream has. A profile of
    v2 shows it at every mixture: gradients that read three tensors reach 322 to 328 GB/s of 350,
    results as large as half of the operands 250, and as large as them 225 (ResNet-50, batch 128).
    """
    costs, rate = device.costs, device.hbm_bandwidth
    alone = rate * (costs.hbm_efficiency if costs.hbm_read is None else costs.hbm_read)
    turns = 2 * smallest(read_bytes, write_bytes) * (1 / copy_bandwidth(device) - 1 / alone)
    return (read_bytes + write_bytes) / alone + turns


def operand_seconds(read_bytes: Number, write_bytes: Number, device: Device) -> Number:
    """Return the seconds to move the operands and the result of a matmul or a convolution.

    Those of `hbm_seconds`, or, where the chip states `matmul_read`, operands at that share of HBM's
    bandwidth and the result at `copy_bandwidth`.
    """
    share = device.costs.matmul_read
    if share is None:
        return hbm_seconds(read_bytes, write_bytes, device)
    return read_bytes / (device.hbm_bandwidth * share) + hbm_seconds(0, write_bytes, device)


def vector_seconds(flops: Number, device: Device) -> Number:
    """Return the seconds of `flops` vector operations at the rate that fused groups reach."""
    return flops / (device.vpu_flops * device.costs.vector_efficiency)


def group_seconds(work: VectorWork, device: Device) -> Number:
    """Return the seconds of an element-wise group: `max(memory, core) + fill + launch`.

    memory: bytes at `copy_bandwidth`; rows that are picked by their index at `gather_efficiency` of
        it.
    core: `max(flops / VPU, crossing tiles x lane_crossing)`, as the cross-lane unit runs beside the
        vector unit. The VPU runs at `vector_efficiency` of its peak, or at `group_efficiency` where
        all operations of a compiled program are counted.
    fill: what memory and core do one after the other, in the first and the last windows of the
        loop: the shorter of the two, and at most `group_fill`.
    launch: see `group_launch`.

    Elements that are scattered by their index follow one after another, `scatter_element` each,
    and so do pieces of rows that are added, `ADDITION_CYCLES` each on one core, and rows that are
    sent to other devices, `row_message` each, while the core waits for those devices.

    Source: "How to Scale Your Model", roofline chapter; 75 operations of two profiles of 7x
    (`experiments/operations`).
    """
    costs = device.costs
    slowed = work.gathered * (1 / costs.gather_efficiency - 1)
    memory = hbm_seconds(work.read_bytes + slowed, work.write_bytes, device)
    reached = costs.group_efficiency if work.compiled else None
    vector = work.flops / (device.vpu_flops * (reached or costs.vector_efficiency))
    core = largest(vector, work.crossing * (costs.lane_crossing or 0.0))
    fill = smallest(smallest(memory, core), costs.group_fill or 0.0)
    scatter = work.scattered * costs.scatter_element + work.added * ADDITION_CYCLES / device.clock
    sent = largest(work.sent * costs.row_message, work.waited)
    return largest(largest(memory, core) + fill, sent) + group_launch(work, device) + scatter


def group_launch(work: VectorWork, device: Device) -> Number:
    """Return the seconds that a group takes on top of its work.

    A plan does not know which arrays are on the chip, and `chip_launch` is not known of every chip:
    then it is `vector_launch`. Of a compiled program it is `chip_launch`, and `READ_LATENCY` of
    `vector_launch` if anything is read in HBM, the rest of it if anything is written there.
    """
    costs = device.costs
    if not work.compiled or costs.chip_launch is None:
        return costs.vector_launch
    reads, writes = smallest(work.read_bytes, 1), smallest(work.write_bytes, 1)
    latency = READ_LATENCY * reads + (1 - READ_LATENCY) * writes
    return costs.chip_launch + costs.vector_launch * latency


def array_seconds(
    batch: Number, m: Number, k: Number, n: Number, dtype: str, device: Device
) -> Number:
    """Return the seconds that the systolic array is busy: `2 batch m' k' n' / (peak e)`.

    k' is k rounded up to the array's side, m' is m rounded up to the rows of a tile, and n' is n,
    but no less than the side. K alone rounds up: at 4160 against 4096 the compiler's estimates grow
    by 3.5 % (v5e) and 6.2 % (v6e), while M and N stay nearly linear (4000 against 4096). 8-bit
    operands fill tiles of 32 rows, and 7x's array is 512 wide for fp8.

    Source: compiler estimates of 269 matmuls, libtpu 0.0.42.1; array sides from JAX's tpu_info.
    """
    side = device.side(dtype)
    rows = BYTE_SUBLANES if dtype in BYTE_DTYPES else SUBLANES
    work = 2.0 * batch * round_up(m, rows) * round_up(k, side) * largest(n, side)
    return work / (matrix_rate(device, dtype) * device.costs.matmul_efficiency)


def matmul_seconds(
    work: MatmulWork, device: Device, share: float = 1.0, overlap: float | None = None
) -> Number:
    """Return the seconds of a matmul: `((array^q + epilogue^q)^(p/q) + memory^p)^(1/p) + launch`.

    share: of the rate of a matmul alone that the array keeps.
    overlap: p; None for that of a matmul alone.
    array: see `array_seconds`; of a grouped kernel with `kernel_step` for each step of its grid.
    epilogue: the vector operations fused into the matmul.
    q: the chip's `epilogue_overlap`, how well they hide behind the array; 1 if not at all.
    memory: see `operand_seconds`; beside both.
    p: the chip's `matmul_overlap`, how well the two hide each other.

    The form fits the compiler's estimates with a median error of 0.8 to 6.2 % by chip (libtpu
    0.0.42.1; M = 1 excluded). CMEM (v4) is not credited: a weight prefetched into it has crossed
    HBM before, so the step as a whole moves the same bytes.

    Raise PlanError if the chip has no matrix rate for the dtype.
    """
    whole, costs = equivalent_matmul(work, device.tensor_cores), device.costs
    steps = grid_steps(work, device.tensor_cores)
    array = array_seconds(*whole, work.dtype, device) / share + steps * costs.kernel_step
    memory = operand_seconds(work.read_bytes, work.write_bytes, device)
    epilogue = vector_seconds(work.epilogue_flops, device)
    on_core = power_sum(array, epilogue, costs.epilogue_overlap)
    return power_sum(on_core, memory, overlap or costs.matmul_overlap) + costs.op_launch


def step_matmul_seconds(work: MatmulWork, device: Device) -> Number:
    """Return the seconds of a matmul inside a training step, at `matmul_in_step` of its rate.

    What it reads is fetched ahead, so that HBM hides better than in a matmul alone:
    `matmul_overlap_in_step`.
    """
    costs = device.costs
    return matmul_seconds(work, device, costs.matmul_in_step, costs.matmul_overlap_in_step)


def estimate_seconds(work: EstimatedWork, device: Device) -> Number:
    """Return the seconds of the compiler's own estimate: `cycles / clock`.

    The cycles are those of the whole device, of both cores if it has two, and include a launch: the
    constant of the fit to estimates of 269 matmuls is what `op_launch` is (libtpu 0.0.42.1).
    """
    return work.cycles / device.clock
