"""Matmuls of a measured table."""

import re
from typing import Any

from tpusim.costs.compute import matmul_seconds
from tpusim.hardware import load_chip
from tpusim.program import MatmulWork

DISPATCH_S = 1e-4
"""Seconds that the host adds to a matmul that it times: the tables say about 0.1 ms."""

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
    device = load_chip(measured.chip).device
    multiplied = dtype if dtype in device.flops else "bf16"
    work = MatmulWork(
        1, m, k, n, multiplied, (m * k + k * n) * BYTES[dtype],
        m * n * RESULT_BYTES.get(dtype, BYTES[dtype]),
    )  # fmt: skip
    return float(matmul_seconds(work, device)) + (DISPATCH_S if measured.host_timed else 0.0)
