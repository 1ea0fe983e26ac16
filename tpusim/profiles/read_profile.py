"""Reading a profile from a file or a folder of TensorBoard's."""

import gzip
import zlib
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import pandas as pd

from tpusim.base.errors import FileError, blame
from tpusim.base.text_files import path_of, read_bytes
from tpusim.base.units import format_bytes
from tpusim.hardware import Chip, chip_names, load_chip
from tpusim.profiles.operations import operation_table, step_table
from tpusim.profiles.profile import Profile
from tpusim.profiles.recorded import DeviceEvents, Event, Recorded
from tpusim.profiles.trace_events import read_trace
from tpusim.profiles.xspace import read_xspace

LARGEST = 2 * 2**30
"""Bytes of a profile, unzipped, at most."""

PATTERNS = ("*.xplane.pb", "*.trace.json.gz", "*.trace.json")
"""Files of a folder, the richest first."""

WANTED = "the `*.xplane.pb` or `*.trace.json.gz` of a profile, or the folder that it is in"
KINDS = {"v5 lite": "v5e", "v6 lite": "v6e", "v7x": "7x", "7x": "7x", "v5": "v5p"}
"""Chips by the names that the profiler has for them, where they are not our own."""

NO_HLO = (
    "a trace has no HLO, so each operation is known by its line alone; the *.xplane.pb beside it "
    "has the programs"
)
NO_KIND = "the profile does not state the chip"


def read_profile(path: str | Path) -> Profile:
    """Return a profile that JAX, TensorFlow or PyTorch/XLA wrote of TPUs.

    path: an XSpace (`*.xplane.pb`), a trace (`*.trace.json.gz`), or a folder above them, such as
        the `plugins/profile/<time>` of TensorBoard; of several hosts, the first.

    Raise FileError for what cannot be read, or is not of TPUs.
    """
    path = path_of(path, "read_profile")
    file = _file_of(path)
    with blame(path.name or str(path)):
        data = _unzipped(read_bytes(file, "a profile", WANTED, LARGEST))
        text = data.lstrip()[:1] in (b"{", b"[")
        recorded = read_trace(data) if text else read_xspace(data)
        return _profile(file.name, recorded)


def _file_of(path: Path) -> Path:
    """Return the file of a profile: of a folder, the newest of its richest kind."""
    if not path.is_dir():
        return path
    for pattern in PATTERNS:
        if found := sorted(path.rglob(pattern), key=lambda file: (str(file.parent), file.name)):
            newest = found[-1].parent
            return next(file for file in found if file.parent == newest)
    raise FileError(f"{path.name or path}: a folder without a profile; give {WANTED}")


def _unzipped(data: bytes) -> bytes:
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        found = gzip.GzipFile(fileobj=BytesIO(data)).read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"broken gzip ({error}); copy the file again") from error
    if len(found) > LARGEST:
        raise FileError(f"more than {format_bytes(LARGEST)} unzipped; profile fewer steps")
    return found


def _profile(name: str, recorded: Recorded) -> Profile:
    devices = [device for device in recorded.devices if device.operations]
    if not devices:
        raise FileError(_nothing(recorded))
    devices = [_with_programs(device) for device in devices]
    operations = _joined([operation_table(device) for device in devices])
    steps = pd.concat([step_table(device) for device in devices], ignore_index=True)
    chip = chip_of(recorded.kind)
    notes = [*recorded.cut]
    notes += [] if recorded.programs else [NO_HLO]
    notes += [] if recorded.kind else [NO_KIND]
    return Profile(
        name=name,
        kind=recorded.kind,
        chip=chip,
        clock_hz=_clock(recorded.peak_flops, load_chip(chip)) if chip else 0.0,
        operations=operations,
        steps=steps.assign(busy_ps=_busy(operations, steps)),
        programs=recorded.programs,
        notes=tuple(notes),
    )


def _nothing(recorded: Recorded) -> str:
    if recorded.others:
        return f"a profile of {recorded.others[0]}; only profiles of TPUs are read"
    if recorded.devices:
        return "no operation in it; start the profile before a step, and stop it after its end"
    return "no TPU in it; profile a program on TPUs, and wait for its result before stopping"


def _with_programs(device: DeviceEvents) -> DeviceEvents:
    """Return a device with executions of programs: the steps, or all as one, if none are known."""
    if not device.programs:
        device.programs = device.steps or [_whole(device)]
    return device


def _whole(device: DeviceEvents) -> Event:
    first = min(event.start_ps for event in device.operations)
    last = max(event.start_ps + event.duration_ps for event in device.operations)
    about = device.operations[0].about._replace(instruction="(all operations)")
    return device.operations[0]._replace(start_ps=first, duration_ps=last - first, about=about)


def _joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return tables one below the other, with the categories of all."""
    names = [name for name in tables[0] if isinstance(tables[0][name].dtype, pd.CategoricalDtype)]
    for name in names:
        shared = dict.fromkeys(each for table in tables for each in table[name].cat.categories)
        for table in tables:
            table[name] = table[name].cat.set_categories([*shared])
    return pd.concat(tables, ignore_index=True)


def _busy(operations: pd.DataFrame, steps: pd.DataFrame) -> pd.Series:
    """Return the self times of the operations on the core in each execution."""
    core = operations[~operations["asynchronous"]]
    found = core.groupby(["device", "step"], observed=True)["self_ps"].sum()
    keys = pd.MultiIndex.from_frame(steps[["device", "step"]])
    return pd.Series(found.reindex(keys, fill_value=0).to_numpy(), index=steps.index)


def chip_of(kind: str) -> str:
    """Return the name of the chip that a profiler calls `kind`; empty if it is none of ours.

    >>> chip_of("TPU v6 Lite")
    'v6e'
    """
    name = kind.lower().removeprefix("tpu").strip()
    name = KINDS.get(name, name)
    return name if name in chip_names() else ""


def _clock(peak_flops: float, chip: Chip) -> float:
    """Return the clock at which a chip's arrays have a peak in FLOP/s."""
    return chip.clock * peak_flops / chip.full_peak if peak_flops else 0.0
