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

__all__ = [
    "Compiled",
    "MemoryReport",
    "StepVariable",
    "TensorFlowStep",
    "compile",
    "load",
    "make_mesh",
    "tensorflow",
]
