"""The command `tpusim calibrate`."""

from collections.abc import Sequence
from dataclasses import asdict

from tpusim.base.json_text import json_text
from tpusim.calibration import calibrate


def calibrate_on(paths: Sequence[str], pod: str | None, out: str | None, *, as_json: bool) -> str:
    """Return the factors that measurements give, and write them to a file if one is given."""
    found = calibrate(list(paths), pod=pod)
    written = []
    if out is not None:
        found.save(out)
        written = [f'wrote {out}; under [slice], calibration = "{out}" uses it']
    if not as_json:
        return "\n".join([str(found), *written])
    factors = {name: asdict(factor) for name, factor in found.factors}
    steps = [dict(step) for step in found.steps]
    return json_text(asdict(found) | {"factors": factors, "steps": steps})
