"""Seconds of a matmul on the systolic array."""

from tpusim.costs.rates import hbm_seconds, matrix_rate
from tpusim.costs.vector import vector_seconds
from tpusim.hardware import Device
from tpusim.program import Matmul, Number
from tpusim.program.grouped import as_worked
from tpusim.program.numeric import largest, power_sum, round_up

SUBLANES = 8
BYTE_SUBLANES = 32
"""Rows of a memory tile, of 32-bit and 16-bit elements and of 8-bit ones (JAX's `tpu_info`,
`get_sublane_tiling`)."""

BYTE_WIDE = ("int8", "fp8")


def array_seconds(
    batch: Number, m: Number, k: Number, n: Number, dtype: str, device: Device
) -> Number:
    """Seconds that the systolic array is busy: `2 batch m' k' n' / (peak e)`.

    k' is k rounded up to the array's side, m' is m rounded up to the rows of a tile, and n' is n,
    but no less than the side. K alone rounds up: at 4160 against 4096 the compiler's estimates grow
    by 3.5 % (v5e) and 6.2 % (v6e), while M and N stay nearly linear (4000 against 4096). 8-bit
    operands fill tiles of 32 rows, and 7x's array is 512 wide for fp8.
    Source: compiler estimates of 269 matmuls, libtpu 0.0.42.1; array sides from JAX's tpu_info.
    """
    side = device.side(dtype)
    rows = BYTE_SUBLANES if dtype in BYTE_WIDE else SUBLANES
    work = 2.0 * batch * round_up(m, rows) * round_up(k, side) * largest(n, side)
    return work / (matrix_rate(device, dtype) * device.costs.matmul_efficiency)


def matmul_seconds(work: Matmul, device: Device) -> Number:
    """Seconds of a matmul: `((array + epilogue)^p + memory^p)^(1/p) + launch`.

    array: see `array_seconds`. epilogue: the vector operations fused to the matmul, which the core
    does as well. memory: operands and result at the HBM rate that copies reach, beside both. p is
    the chip's `matmul_overlap`: how well the two hide each other. The form fits the compiler's
    estimates with a median error of 0.8 to 6.2 % by chip (libtpu 0.0.42.1; M = 1 excluded).

    CMEM (v4) is not credited: a weight prefetched into it has crossed HBM before, so the step as a
    whole moves the same bytes.

    Raises PlanError where the chip has no matrix rate for the dtype.
    """
    array = array_seconds(*as_worked(work), work.dtype, device)
    memory = hbm_seconds(work.read_bytes, work.write_bytes, device)
    on_core = array + vector_seconds(work.epilogue_flops, device)
    return power_sum(on_core, memory, device.costs.matmul_overlap) + device.costs.op_launch
