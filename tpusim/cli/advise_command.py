"""The command `tpusim advise`."""

from collections.abc import Sequence

from tpusim.base.errors import PlanError, blame
from tpusim.base.json_text import json_text
from tpusim.runfile import read_run
from tpusim.simulation import simulate


def advise_run_file(path: str, settings: Sequence[str], *, top: int | None, as_json: bool) -> str:
    """Return the advice on a run, as text with the `top` changes of each kind, or as JSON."""
    if top is not None and top < 1:
        raise PlanError(f"--top is {top}; write the number of changes to show, from 1 up")
    run = read_run(path, settings)
    with blame(run.where):
        found = simulate(run.model, run.plan, run.pod, input=run.input).advice()
    if as_json:
        return json_text(found.facts())
    return str(found if top is None else found.shown(top))
