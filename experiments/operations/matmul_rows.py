"""Matmuls of a measured table."""

import re
from typing import Any

from tpusim.costs.compute import matmul_seconds
from tpusim.hardware import load_chip
from tpusim.program import MatmulWork

DISPATCH_S = 1e-4
"""Seconds that the host adds to a matmul that it times: the tables say about 0.1 ms."""

FULL_POWER = {"7x": 0.951}
"""Share of the peak that large matmuls reach at the highest power state (`p_state=7`), which lifts
the limit that `matmul_efficiency` was measured under: six bf16 matmuls of 8192 to 16384 on 7x at
1079 to 1103 TFLOP/s a device, 956 without (yangwhale/gpu-tpu-pedia @3fa9ce1; tpu-recipes).
"""

BYTES = {"bf16": 2, "f32": 4, "int8": 1, "fp8": 1}
RESULT_BYTES = {"int8": 4, "fp8": 2}


def matmul(measured: Any) -> float:
    """Return the predicted seconds of `DTYPE m=M k=K n=N`.

    A dtype that the chip does not multiply is multiplied as bf16, as in compiled programs.
    """
    found = re.match(r"(\w+) m=(\d+) k=(\d+) n=(\d+)", measured.params)
    if not found:
        raise ValueError(f"{measured.params!r} has no m, k and n")
    dtype, (m, k, n) = found[1], map(int, found.groups()[1:])
    if dtype not in BYTES:
        raise ValueError(f"dtype {dtype!r} is none of {', '.join(BYTES)}")
    device = load_chip(measured.chip).device
    multiplied = dtype if dtype in device.flops else "bf16"
    work = MatmulWork(
        1, m, k, n, multiplied, (m * k + k * n) * BYTES[dtype],
        m * n * RESULT_BYTES.get(dtype, BYTES[dtype]),
    )  # fmt: skip
    reached = FULL_POWER.get(measured.chip, 0) if "p_state=7" in measured.software else 0
    share = (reached or device.costs.matmul_efficiency) / device.costs.matmul_efficiency
    return float(matmul_seconds(work, device, share)) + (DISPATCH_S if measured.host_timed else 0.0)
