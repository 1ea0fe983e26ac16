"""A step as a comparison sees it: its numbers and settings, from a result or a result file."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpusim.base.errors import FileError, blame
from tpusim.base.plain_text import plain, visible
from tpusim.base.shown_value import shown
from tpusim.base.text_files import read_text
from tpusim.hardware import DIE, Placement, Span
from tpusim.hardware.topology import DIMENSION_NAMES
from tpusim.report.result_json import document
from tpusim.results import PICO, Result, with_sorted_axes

RESULT_FILE = "result.json"
LARGEST_RESULT = 2**28
"""Bytes of the largest result file that is read; those of long programs list each line of code."""

LARGEST_NUMBER = 1e30
"""Above every number of a result."""

DEEPEST = 12
"""Tables and lists within each other in a result file, at most; results have half as many."""

SUM_TOLERANCE = 1e-9
"""The relative difference of a step and its parts, as floats, up to which rounding explains it."""

_WANTED = f"a {RESULT_FILE} that `tpusim simulate --out DIR` wrote"
_NUMBERS: Mapping[str, bool] = {
    "step_time_s": True,
    "hfu": True,
    "hbm_peak_bytes": True,
    "hbm_bytes": True,
    "mfu": False,
    "tokens_per_s": False,
}
"""The numbers that a result file has; False for those that may be null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStep:
    """The numbers of a step, and the settings that it follows from.

    title: the model or the program, and the slice.
    source: the file that the step came from; empty for a result of this process.
    step_ps: whole picoseconds.
    breakdown_ps: by kind of work, exposed communication by mesh axes (in alphabetical order), waits
        and bubbles; sums to `step_ps`.
    phases_ps: by phase; sums to `step_ps`.
    mfu, tokens_per_s: None where they are not known.
    hbm_peak_bytes, hbm_bytes: bytes that a device needs, and that the compiler can use.
    fit: the verdict on them.
    settings: slice, placement, and the keys of model and plan.
    """

    title: str
    source: str
    step_ps: int
    breakdown_ps: Mapping[str, int]
    phases_ps: Mapping[str, int]
    mfu: float | None
    hfu: float
    tokens_per_s: float | None
    hbm_peak_bytes: float
    hbm_bytes: float
    fit: str
    settings: Mapping[str, Any]

    @property
    def step_time_s(self) -> float:
        """Seconds of the step."""
        return self.step_ps * PICO


def step_of(result: Result, source: str = "") -> ComparedStep:
    """Return the step of a result."""
    return _step(document(result), source)


def read_step(path: Path | str) -> ComparedStep:
    """Return the step in a result file, or in the one of a report's folder.

    Raise FileError with one sentence for a file that cannot be read, or is no result.
    """
    path = Path(path)
    file = path / RESULT_FILE if path.is_dir() else path
    with blame(str(file)):
        try:
            text = read_text(file, "a result file", _WANTED, LARGEST_RESULT)
            written = _visible(json.loads(text, parse_constant=_no_constant))
        except (ValueError, RecursionError) as error:
            raise FileError(f"not JSON ({error}); give {_WANTED}") from error
        _check(written)
        return _step(written, str(path))


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _visible(value: Any, depth: int = 0) -> Any:
    """Return the content of a file with texts that can be shown. Raise ValueError if it is deep."""
    if depth > DEEPEST:
        raise ValueError(f"more than {DEEPEST} tables or lists within each other")
    if isinstance(value, dict):
        return {visible(key): _visible(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_visible(each, depth + 1) for each in value]
    return visible(value) if isinstance(value, str) else value


def _check(written: Any) -> None:
    """Raise FileError unless this is the content of a result file."""
    if not isinstance(written, dict):
        raise FileError(f"not a result; give {_WANTED}")
    for key, needed in _NUMBERS.items():
        if not _is_number(written.get(key, "")) and (needed or written.get(key, "") is not None):
            raise FileError(_no_result(key, written))
    if written["step_time_s"] < PICO:
        raise FileError(_no_result("step_time_s", written))
    for key in ("breakdown_s", "phases_s"):
        parts = written.get(key)
        if not isinstance(parts, dict) or not all(map(_is_number, parts.values())):
            raise FileError(_no_result(key, written))
        whole, step = sum(parts.values()), written["step_time_s"]
        if abs(whole - step) > SUM_TOLERANCE * step:
            raise FileError(
                f"{key} sums to {whole!r}, but step_time_s is {step!r}, so it was changed by hand; "
                "write it again with `tpusim simulate --out DIR`"
            )
    for key in ("slice", "placement"):
        if not isinstance(written.get(key), dict):
            raise FileError(_no_result(key, written))
    for key in ("chip", "topology"):
        if not isinstance(written["slice"].get(key), str):
            raise FileError(_no_result(key, written["slice"], "slice."))


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value < LARGEST_NUMBER
    )


def _no_result(key: str, written: Mapping[str, Any], table: str = "") -> str:
    name = f"{table}{key}"
    fault = f"{name} is {shown(written[key])}" if key in written else f"it has no {name}"
    return f"not a result of a simulation, as {fault}; give {_WANTED}"


def _step(written: Mapping[str, Any], source: str) -> ComparedStep:
    step_ps = round(written["step_time_s"] / PICO)
    labels: dict[str, float] = {}
    for label, seconds in written["breakdown_s"].items():
        name = plain(with_sorted_axes(label))
        labels[name] = labels.get(name, 0.0) + seconds
    return ComparedStep(
        title=f"{plain(_name(written))} on {plain(_slice(written['slice']))}",
        source=visible(source),
        step_ps=step_ps,
        breakdown_ps=_whole(labels, step_ps),
        phases_ps=_whole(written["phases_s"], step_ps),
        mfu=written["mfu"],
        hfu=written["hfu"],
        tokens_per_s=written["tokens_per_s"],
        hbm_peak_bytes=written["hbm_peak_bytes"],
        hbm_bytes=written["hbm_bytes"],
        fit=plain(str(written.get("fit", ""))),
        settings=dict(_settings(written)),
    )


def _whole(parts: Mapping[str, float], step_ps: int) -> dict[str, int]:
    """Return parts in whole picoseconds that sum to the step.

    A float holds the picoseconds of a quarter of an hour; what rounding changes of longer steps
    goes to the largest part.
    """
    found = {name: round(seconds / PICO) for name, seconds in parts.items() if seconds}
    if found and (left := step_ps - sum(found.values())):
        found[max(found, key=lambda name: found[name])] += left
    return found


def _name(written: Mapping[str, Any]) -> str:
    for key, name in (("model", "name"), ("replay", "program")):
        table = written.get(key)
        if isinstance(table, dict) and name in table:
            return str(table[name])
    return "a step"


def _slice(pod: Mapping[str, Any]) -> str:
    """Return a slice as `Slice` prints."""
    shape = f"{pod.get('chip')}:{pod.get('topology')}{'_twisted' * bool(pod.get('twisted'))}"
    number = pod.get("num_slices", 1)
    return f"{shape} x {number} slices" if number != 1 else shape


def _settings(written: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each setting of a run by its name, those of model and plan by their keys."""
    yield "slice", _slice(written["slice"])
    for key in ("dcn_oversubscription", "clock_hz", "slow", "broken"):
        if key in written["slice"]:
            yield f"slice.{key}", written["slice"][key]
    calibration = written["slice"].get("calibration")
    if isinstance(calibration, dict):
        yield "slice.calibration", calibration.get("file")
    for section in ("model", "plan"):
        table = written.get(section)
        if isinstance(table, dict):
            yield from ((f"{section}.{key}", value) for key, value in table.items())
    yield "placement", _placement(written["placement"].get("axes"))
    yield "network", written.get("network")
    replay = written.get("replay")
    if isinstance(replay, dict):
        yield from ((key, replay.get(key)) for key in ("program", "costs", "mesh"))


def _placement(axes: Any) -> str:
    """Return a placement as `Placement` prints; empty if it is not known."""
    if not isinstance(axes, dict):
        return ""
    dims = {name: dim for dim, name in enumerate(DIMENSION_NAMES)} | {"die": DIE}
    try:
        spans = {
            axis: tuple(Span(dims[s["dimension"]], s["size"], s["stride"]) for s in parts)
            for axis, parts in axes.items()
        }
    except (KeyError, TypeError):
        return ""
    return str(Placement(tuple(spans.items())))
