"""Errors, units, the phases of a step, and text files, for every package."""

from tpusim.base.errors import CompileError as CompileError
from tpusim.base.errors import FileError as FileError
from tpusim.base.errors import HardwareError as HardwareError
from tpusim.base.errors import ModelError as ModelError
from tpusim.base.errors import PlanError as PlanError
from tpusim.base.errors import TpusimError as TpusimError
from tpusim.base.errors import UnitError as UnitError
from tpusim.base.phase import Phase as Phase
from tpusim.base.units import format_bytes as format_bytes
from tpusim.base.units import format_rate as format_rate
from tpusim.base.units import format_seconds as format_seconds
from tpusim.base.units import parse as parse
