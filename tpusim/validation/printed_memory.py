"""The HBM that the source of a measured run printed, as its notes quote it."""

import re

from tpusim.base.units import parse
from tpusim.hardware import load_chip
from tpusim.validation.measured_runs import MeasuredRun

_AMOUNT = r"(?P<number>\d+(?:\.\d+)?)(?:-\d+(?:\.\d+)?)? (?P<unit>GiB|GB|G)\b"
_PRINTED = re.compile(
    rf"HBM printed: .*?\btotal {_AMOUNT.replace('<', '<total_')}"
    rf"|peak HBM {_AMOUNT.replace('<', '<peak_')}"
    rf"|\bHBM {_AMOUNT.replace('<', '<chip_')}(?:/| a )chip"
)
_UNITS = {"G": "GiB"}
"""What the compiler's messages call a G: 95.74 G are the usable 95.74 GiB of a v5p."""


def printed_hbm_bytes(run: MeasuredRun) -> float | None:
    """Return the bytes that one device of a run needed by its notes, or None if they do not say.

    The last amount counts, as notes that refer to another run's come first. The first of a range
    is taken. `HBM printed` and `peak HBM` are of a device, `HBM 14 GB/chip` of a chip.
    """
    found = list(_PRINTED.finditer(run.notes))
    if not found:
        return None
    groups = {name: text for name, text in found[-1].groupdict().items() if text}
    (kind, number), (_, unit) = ((name.partition("_")[0], text) for name, text in groups.items())
    nbytes = parse(f"{number} {_UNITS.get(unit, unit)}", "B", f"{run.id}: HBM")
    return nbytes / (load_chip(run.chip).devices if kind == "chip" else 1)
