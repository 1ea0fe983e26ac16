"""The experiment calibration: its modules."""

import sys
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[1] / "experiments" / "calibration"


@cache
def module(name: str) -> ModuleType:
    """Import one of the experiment's modules."""
    sys.path.insert(0, str(FOLDER))
    try:
        return import_module(name) if name != "run" else _script()
    finally:
        sys.path.remove(str(FOLDER))


def _script() -> ModuleType:
    """Import `run.py` under another name, as other experiments have a `run` too."""
    spec = spec_from_file_location("calibration_run", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    return script
