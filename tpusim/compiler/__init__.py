"""Compiled programs: JAX functions compiled for a TPU slice, or HLO, lowered for replay.

Needs the extra `xla`: jaxlib reads HLO, and jax with libtpu compiles without a TPU. Neither is
imported before it is needed.
"""

from tpusim.compiler.compiled import Compiled, MemoryReport, check_flops, load
from tpusim.compiler.compiling import compile
from tpusim.compiler.lower.lower_module import LoweredModule
from tpusim.compiler.lower_compiled import lower_compiled
from tpusim.compiler.tf import StepVariable, TensorFlowStep, tensorflow
from tpusim.compiler.topologies import make_mesh, place_mesh
from tpusim.compiler.work.instruction_work import Costs

__all__ = [
    "Compiled",
    "Costs",
    "LoweredModule",
    "MemoryReport",
    "StepVariable",
    "TensorFlowStep",
    "check_flops",
    "compile",
    "load",
    "lower_compiled",
    "make_mesh",
    "place_mesh",
    "tensorflow",
]
