"""Reading a profile from a file or a folder of TensorBoard's."""

import gzip
import re
import zlib
from io import BufferedIOBase, BytesIO
from operator import add
from pathlib import Path

import pandas as pd

from tpusim.base.errors import FileError, blame
from tpusim.base.text_files import A_PROFILE, PROFILES, path_of, read_bytes
from tpusim.base.units import format_bytes
from tpusim.hardware import chip_names, load_chip
from tpusim.profiles.operations import operation_table, stacked, step_table
from tpusim.profiles.profile import Profile
from tpusim.profiles.recorded import About, DeviceEvents, Recorded, clean
from tpusim.profiles.trace_events import read_trace
from tpusim.profiles.xspace import read_xspace

LARGEST = 2 * 2**30
"""Bytes of a profile, unzipped, at most."""

MOST_DEVICES = 512
"""Devices of one file; a host has eight at most."""

FOLDERS = ("", "*/", "profile/*/", "plugins/profile/*/", "*/plugins/profile/*/")
"""Where in a folder a profile lies, from the folder of one to that of TensorBoard's runs."""

ALL_OPERATIONS = "(all operations)"
"""Stands for the program of a profile that names none."""

WANTED = "the `*.xplane.pb` or `*.trace.json.gz` of a profile, or the folder that it is in"
JSON = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\{|\[\s*(?:[\]{\d]|$))")
"""How an object or an array of them begins; a TOML file begins with the name of a table."""

KINDS = {"v5 lite": "v5e", "v6 lite": "v6e", "v7x": "7x", "7x": "7x", "v5": "v5p"}
"""Chips by the names that the profiler has for them, where they are not our own."""

NO_KIND = "the profile does not state the chip"


def read_profile(path: str | Path) -> Profile:
    """Return a profile that JAX, TensorFlow or PyTorch/XLA wrote of TPUs.

    path: an XSpace (`*.xplane.pb`), a trace (`*.trace.json.gz`), or a folder above them, such as
        the `plugins/profile/<time>` of TensorBoard; of several hosts, the first.

    Raise FileError for what cannot be read, or is not of TPUs.
    """
    path = path_of(path, "read_profile")
    with blame(path.name or str(path)):
        file, note = _file_of(path)
    with blame(file.name or str(file)):
        recorded = _recorded(read_bytes(file, A_PROFILE, WANTED, LARGEST))
        return _profile(clean(file.name), recorded, note)


def _file_of(path: Path) -> tuple[Path, str]:
    """Return the file of a profile, and a note on it: of a folder, the newest of its best kind.

    TensorBoard names the folder of a profile after its time.
    """
    try:
        if not path.is_dir():
            return path, ""
        for kind in PROFILES:
            found = [file for folder in FOLDERS for file in path.glob(f"{folder}*{kind}")]
            if found:
                newest = max((file.parent for file in found), key=lambda each: (each.name, each))
                hosts = sorted(file for file in found if file.parent == newest)
                note = f"the first of {len(hosts)} hosts; give the file of another to read it"
                return hosts[0], note if len(hosts) > 1 else ""
    except (OSError, ValueError) as error:
        raise FileError(f"cannot be read; give {WANTED}") from error
    raise FileError(f"a folder without a profile; give {WANTED}")


def _recorded(data: bytes) -> Recorded:
    """Return what a file holds, as a trace if it is JSON and as an XSpace otherwise."""
    packed = data.startswith(b"\x1f\x8b")
    try:
        stream: BufferedIOBase = gzip.GzipFile(fileobj=BytesIO(data)) if packed else BytesIO(data)
        if JSON.match(stream.read(64)):
            stream.seek(0)
            return read_trace(stream)
        if packed:
            stream.seek(0)
            data = stream.read(LARGEST + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileError(f"broken gzip ({error}); copy the file again") from error
    if len(data) > LARGEST:
        raise FileError(f"more than {format_bytes(LARGEST)} unzipped; profile fewer steps")
    return read_xspace(data)


def _profile(name: str, recorded: Recorded, note: str) -> Profile:
    devices = [device for device in recorded.devices.values() if len(device.operations)]
    devices.sort(key=lambda device: (len(device.name), device.name))
    if not devices:
        raise FileError(_nothing(recorded))
    if len(devices) > MOST_DEVICES:
        raise FileError(f"{len(devices):,} devices, where a host has few; copy the file again")
    for device in devices:
        _name_programs(device)
    operations = stacked([operation_table(device) for device in devices])
    steps = pd.concat([step_table(device) for device in devices], ignore_index=True)
    core = operations[~operations["asynchronous"]]
    busy = core.groupby(["device", "step"], observed=True)["self_ps"].sum()
    keys = pd.MultiIndex.from_frame(steps[["device", "step"]])
    chip = chip_of(recorded.kind)
    impossible = sum(each.impossible for device in devices for each in device.all_events)
    left_out = "s are left out" if impossible > 1 else " is left out"
    notes = (
        note,
        *recorded.notes,
        f"{impossible:,} event{left_out}, as times are impossible" if impossible else "",
        "" if recorded.kind else NO_KIND,
    )
    return Profile(
        name=name,
        kind=recorded.kind,
        chip=chip,
        clock_hz=_clock(chip, recorded.peak_flops),
        operations=operations,
        steps=steps.assign(busy_ps=busy.reindex(keys, fill_value=0).to_numpy()),
        programs=recorded.programs,
        notes=tuple(filter(None, notes)),
    )


def _nothing(recorded: Recorded) -> str:
    if recorded.others:
        return f"a profile of {recorded.others[0]}; only profiles of TPUs are read"
    if recorded.devices:
        return "no operation in it; start the profile before a step, and stop it after its end"
    return "no TPU in it; profile a program on TPUs, and wait for its result before stopping"


def _name_programs(device: DeviceEvents) -> None:
    """Have executions of programs: if none are known, the steps, or all operations as one."""
    if len(device.programs):
        return
    if len(device.steps):
        device.programs = device.steps
        return
    first = min(device.operations.starts)
    ends = map(add, device.operations.starts, device.operations.durations)
    device.programs.add(first, max(ends) - first, device.programs.number(About(ALL_OPERATIONS)))


def chip_of(kind: str) -> str:
    """Return the name of the chip that a profiler calls `kind`; empty if it is none of ours.

    >>> chip_of("TPU v6 Lite")
    'v6e'
    """
    name = kind.lower().removeprefix("tpu").strip()
    name = KINDS.get(name, name)
    return name if name in chip_names() else ""


def _clock(chip: str, peak_flops: float) -> float:
    """Return the clock at which a chip's arrays have a peak in FLOP/s; 0 if either is unknown."""
    if not chip or not peak_flops:
        return 0.0
    known = load_chip(chip)
    return known.clock * peak_flops / known.full_peak
