"""JAX programs and HLO: the public names of `tpusim.compiler`.

compiled = ts.xla.compile(train_step, state, batch, slice="v5e:16x16", mesh={"fsdp": 256})
compiled = ts.xla.load("step.hlo.gz")
"""

from tpusim.compiler import Compiled, MemoryReport, compile, load, make_mesh
from tpusim.compiler.torch_module import TorchStep
from tpusim.compiler.torch_module import torch_step as torch

__all__ = ["Compiled", "MemoryReport", "TorchStep", "compile", "load", "make_mesh", "torch"]
