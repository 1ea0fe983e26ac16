"""The names of this room, each from its module; `__init__.py` loads it on first use."""

from .compiled import Compiled as Compiled
from .compiled import MemoryReport as MemoryReport
from .compiled import check_flops as check_flops
from .compiled import load as load
from .compiling import RefusedError as RefusedError
from .compiling import compile as compile
from .tf import StepVariable as StepVariable
from .tf import TensorFlowStep as TensorFlowStep
from .tf import tensorflow as tensorflow
from .to_program.translate_module import TranslatedModule as TranslatedModule
from .to_program.translate_module import translate_compiled as translate_compiled
from .topologies import make_mesh as make_mesh
from .topologies import place_mesh as place_mesh
from .work.instruction_work import Costs as Costs
