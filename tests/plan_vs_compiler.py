"""The experiment plan_vs_compiler: its modules, and the twins of its tables."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pandas as pd

FOLDER = Path(__file__).parents[1] / "experiments" / "plan_vs_compiler"


def module(name: str) -> ModuleType:
    """Import one of the experiment's modules."""
    sys.path.insert(0, str(FOLDER))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(FOLDER))


def twins(sample: str = "twins") -> pd.DataFrame:
    """The twins of a sample that were compiled until their schedule."""
    table: pd.DataFrame = module("table").until_schedule(sample)
    return table
