"""The experiment calibration: its modules."""

import sys
from functools import cache
from importlib import import_module
from types import ModuleType

from scripts import EXPERIMENTS, experiment

FOLDER = EXPERIMENTS / "calibration"


@cache
def module(name: str) -> ModuleType:
    """Import one of the experiment's modules."""
    sys.path.insert(0, str(FOLDER))
    try:
        return import_module(name) if name != "run" else experiment("calibration")
    finally:
        sys.path.remove(str(FOLDER))
