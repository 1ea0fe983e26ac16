"""Parts of whole steps of a measured table: by the replay of a program, or by a plan."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from vision_step_rows import is_vision, vision_step

import tpusim as ts
from tpusim.compiler import load
from tpusim.hardware import Slice, parse_slice
from tpusim.simulation import replay

STEPS = Path(__file__).parent / "steps"
EXPOSED = "exposed"
KINDS = {"matmul": "matmul", "attention": "attention", "vector": "vector", "conv": "convolution"}
"""Categories that are kinds of work; a profile counts a fusion of a matmul with its epilogue."""
PARTS_OF_IDS = r"[a-z0-9]{4,}"


def step_category(measured: Any) -> float:
    """Return the predicted seconds of a category of a step, as `step category: matmul`.

    The step is the program of `programs` whose file name shares a part of the row's id, the run of
    `steps/` that does, or the model and plan that `params` states.
    """
    if is_vision(measured.params):
        return vision_step(measured)
    result = _result(measured.id, measured.chip, measured.slice, measured.params, measured.programs)
    category = measured.kind.partition(": ")[2]
    if category == "step":
        return float(result.step_time_s)
    parts: Mapping[str, float] = result.breakdown_s
    if category in KINDS:
        return parts.get(KINDS[category], 0.0)
    if category in (EXPOSED, "allreduce"):
        return float(result.exposed_s)
    if f"{EXPOSED} {category}" not in parts:
        raise ValueError(f"a step has no part {category!r}; it has {', '.join(parts)}")
    return parts[f"{EXPOSED} {category}"]


def _result(id: str, chip: str, slice: str, params: str, programs: tuple[Path, ...]) -> Any:
    pod = parse_slice(f"{chip}:{slice}")
    if program := _named_alike(id, programs):
        return _replayed(program, pod)
    batch = re.search(r"\bb(\d+)(?:/chip)?\b", params)
    if run := _named_alike(id, tuple(sorted(STEPS.glob("*.toml")))):
        return _simulated(run, pod, int(batch[1]) if batch else 0)
    raise ValueError(f"no program and no run file has a part of the name {id!r}")


def _named_alike(id: str, paths: tuple[Path, ...]) -> Path | None:
    """Return the first path whose name has a part of the id that no other part is in."""
    own = set(re.findall(PARTS_OF_IDS, id)) - {"step"}
    return next((path for path in paths if own & set(re.findall(PARTS_OF_IDS, path.stem))), None)


@cache
def _replayed(path: Path, pod: Slice) -> Any:
    return replay(load(path), pod)


@cache
def _simulated(path: Path, pod: Slice, batch: int) -> Any:
    """Return the result of a file of `steps/`: a run, or a MaxText config and settings."""
    given = tomllib.loads(path.read_text())
    if "maxtext" not in given:
        run = ts.read_run(path)
    else:
        keys = given["maxtext"] | ({"per_device_batch_size": batch} if batch else {})
        run = ts.from_maxtext(None, keys, pod=pod, settings=given.get("settings", ()))
    return ts.simulate(run.model, run.plan, run.pod)
