"""The command `tpusim calibrate`."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tpusim.base.json_text import json_text
from tpusim.calibration import calibrate
from tpusim.hardware import Calibration


def calibrate_on(paths: Sequence[str], pod: str | None, out: str | None, *, as_json: bool) -> str:
    """Return the factors that measurements give, and write them to a file if one is given."""
    found = calibrate(list(paths), pod=pod)
    written = []
    if out is not None:
        found.save(out)
        written = [f'wrote {out}; under [slice], calibration = "{out}" uses it']
    return json_text(_document(found)) if as_json else "\n".join([str(found), *written])


def _document(found: Calibration) -> dict[str, Any]:
    facts = asdict(found)
    facts["factors"] = {name: asdict(factor) for name, factor in found.factors}
    return facts
