"""The front door: each public name, listed here alone; `__init__.py` loads it on first use."""

from . import models as models
from . import xla as xla
from .base.errors import TpusimError as TpusimError
from .hardware import Chip as Chip
from .hardware import Slice as Slice
from .hardware import load_chip as load_chip
from .maxtext import from_maxtext as from_maxtext
from .plan import Plan as Plan
from .report import write_report as write_report
from .results.lines import explain_lines as explain_lines
from .results.plan_result import PlanResult as PlanResult
from .results.replay_result import ReplayResult as ReplayResult
from .results.result import Result as Result
from .results.stage_table import explain_pipeline as explain_pipeline
from .runfile import read_run as read_run
from .search import PlanSpace as PlanSpace
from .search import Scaling as Scaling
from .search import Space as Space
from .search import bound as bound
from .search import cluster as cluster
from .search import scaling as scaling
from .search import search as search
from .search import slices_of as slices_of
from .search import sweep as sweep
from .simulation import explain_collectives as explain_collectives
from .simulation import explain_placement as explain_placement
from .simulation import simulate as simulate
from .twin import PlanCheck as PlanCheck
from .twin import check as check
from .twin import export_jax as export_jax
from .validation import validate as validate
from .validation import with_measured as with_measured

__version__: str
