"""The front door: each public name, listed here alone; `__init__.py` loads it on first use."""

from . import models as models
from . import xla as xla
from .base.errors import TpusimError as TpusimError
from .exploration import PlanSpace as PlanSpace
from .exploration import Scaling as Scaling
from .exploration import Space as Space
from .exploration import bound as bound
from .exploration import cluster as cluster
from .exploration import scaling as scaling
from .exploration import search as search
from .exploration import slices_of as slices_of
from .exploration import sweep as sweep
from .hardware import Chip as Chip
from .hardware import Slice as Slice
from .hardware import load_chip as load_chip
from .maxtext import from_maxtext as from_maxtext
from .plan import Input as Input
from .plan import Plan as Plan
from .report import write_report as write_report
from .results.advice import Advice as Advice
from .results.advice import Change as Change
from .results.input_use import InputUse as InputUse
from .results.limit import Limit as Limit
from .results.lines import explain_lines as explain_lines
from .results.plan_result import PlanResult as PlanResult
from .results.replay_result import ReplayResult as ReplayResult
from .results.result import Result as Result
from .results.stage_table import explain_pipeline as explain_pipeline
from .runfile import read_run as read_run
from .simulation import explain_collectives as explain_collectives
from .simulation import explain_placement as explain_placement
from .simulation import simulate as simulate
from .twin import PlanCheck as PlanCheck
from .twin import check as check
from .twin import export_jax as export_jax
from .validation import validate as validate
from .validation import with_measured as with_measured

__version__: str
