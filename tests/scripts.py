"""Scripts outside of the package, such as those of the experiments, as modules."""

import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


@cache
def script(path: Path) -> ModuleType:
    """Run a script as a module of its own name: several are called `run.py`."""
    name = f"{path.parent.name}_{path.stem}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def experiment(name: str) -> ModuleType:
    """Return the `run.py` of an experiment."""
    return script(EXPERIMENTS / name / "run.py")
