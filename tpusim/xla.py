"""JAX programs and HLO: the public names of `tpusim.compiler`.

compiled = ts.xla.compile(train_step, state, batch, slice="v5e:16x16", mesh={"fsdp": 256})
compiled = ts.xla.load("step.hlo.gz")
step = ts.xla.tensorflow(train_step, tf.TensorSpec((256, 1024), tf.int32))
"""

from tpusim.compiler import (
    Compiled,
    MemoryReport,
    StepVariable,
    TensorFlowStep,
    compile,
    load,
    make_mesh,
    tensorflow,
)
from tpusim.compiler.torch_module import TorchStep
from tpusim.compiler.torch_module import torch_step as torch

__all__ = [
    "Compiled",
    "MemoryReport",
    "StepVariable",
    "TensorFlowStep",
    "TorchStep",
    "compile",
    "load",
    "make_mesh",
    "tensorflow",
    "torch",
]
