"""Plans that do not fit: the TPU compiler takes the first suggestion of each.

The plans are those of `experiments/making_it_fit`.
"""

import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest
from extent import sample

import tpusim as ts

pytestmark = [
    pytest.mark.xla,
    pytest.mark.skipif(
        find_spec("libtpu") is None or find_spec("optax") is None,
        reason="needs pip install 'tpusim[xla]'",
    ),
]

SCRIPT = Path(__file__).parents[2] / "experiments" / "making_it_fit" / "run.py"
PLANS: dict[tuple[str, str], ts.Plan] = runpy.run_path(str(SCRIPT))["plans"]()


@pytest.mark.parametrize(("model", "pod"), sample(list(PLANS), every=24))
def test_the_compiler_takes_the_first_suggestion(
    model: str, pod: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path / "cache"))
    ways = ts.simulate(model, PLANS[model, pod], pod).ways_to_fit()
    assert ways is not None
    first = ways.ways[0]
    made = ts.check(model, first.plan, first.pod)
    assert not made.compiled.refusal, first
    assert made.program.hbm_peak_bytes <= first.hbm_bytes
