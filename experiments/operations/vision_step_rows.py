"""Whole steps of image networks, and the part of their convolutions, by a plan."""

import re
from typing import Any

import tpusim as ts
from tpusim.base.errors import TpusimError
from tpusim.hardware import parse_slice

PARAMS = re.compile(r"(resnet-\d+)\b.* b(\d+)\b", re.IGNORECASE)
PARTS = {"conv": ("convolution", "matmul")}
"""Kinds of work of a category: a convolution with a single tap and no stride is a matmul."""


def is_vision(params: str) -> bool:
    """Return True for a step of an image network, as `ResNet-50 Keras b1024, plan`."""
    return PARAMS.match(params) is not None


def vision_step(measured: Any) -> float:
    """Return the predicted seconds of a step, or of the category of its convolutions.

    Data parallel over all devices, with momentum and statistics of each device's own examples, in
    f32 as the bytes of the profile's convolutions have it.
    """
    found = PARAMS.match(measured.params)
    if not found:
        raise ValueError(f"{measured.params!r} is no `ResNet-50 ... bN`")
    try:
        pod = parse_slice(f"{measured.chip}:{measured.slice.partition(',')[0]}")
        model = ts.models.load(found[1].lower(), norm="device")
        plan = ts.Plan(
            mesh={"data": pod.devices}, global_batch=int(found[2]), remat="none",
            optimizer="momentum", dtype="f32",
        )  # fmt: skip
        result = ts.simulate(model, plan, pod)
    except TpusimError as error:
        raise ValueError(str(error)) from error
    category = measured.kind.partition(": ")[2]
    if category == "step":
        return float(result.step_time_s)
    parts = PARTS.get(category, (category,))
    if not set(parts) & set(result.breakdown_s):
        raise ValueError(f"a step has no part {category!r}; it has {', '.join(result.breakdown_s)}")
    return sum(result.breakdown_s.get(part, 0.0) for part in parts)
