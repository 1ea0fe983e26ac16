"""A small model, slice and space that the tests of sweeps share."""

from typing import Any

from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.sweeps import Space

POD = Slice("v5e", "4x4")
MODEL = Transformer(layers=2, embed=256, mlp=1024, heads=4, vocab=1000)
BASE = Plan(mesh={"fsdp": 16}, seq_len=64, global_batch=32)
AXES = ("data", "fsdp", "tensor")


def space(**given: Any) -> Space:
    return Space(**{"base": BASE, "axes": AXES, **given})
