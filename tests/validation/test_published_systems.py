"""Systems that papers measured and no constant was fitted to, each from its experiment."""

from functools import cache
from pathlib import Path

import pytest

import tpusim as ts
from tpusim.results import Result

FOLDER = Path(__file__).parents[2] / "experiments"
ONE_POD = ("slice.num_slices=1", "plan.mesh.dcn_data=1", "plan.global_batch=1024")


@cache
def palm(*overrides: str) -> Result:
    run = ts.read_run(FOLDER / "palm_540b" / "run.toml", overrides)
    return ts.simulate(run.model, run.plan, run.pod)


def test_palm_takes_what_it_took_on_two_pods() -> None:
    """238.3K tokens/s at 46.2 % MFU (arXiv:2204.02311, table 3 and section 4)."""
    assert palm().step_time_s == pytest.approx(17.6, rel=0.05)
    assert palm().mfu == pytest.approx(0.462, rel=0.05)
    assert palm().fits


def test_palm_is_nearly_twice_as_fast_on_two_pods_as_on_one() -> None:
    """1.95 times (section 4)."""
    assert 1.9 <= palm().tokens_per_s / palm(*ONE_POD).tokens_per_s <= 2.0


def test_the_page_says_what_the_second_pod_brings() -> None:
    page = (FOLDER / "palm_540b" / "README.md").read_text("utf-8")
    gain = palm().tokens_per_s / palm(*ONE_POD).tokens_per_s
    assert f"**{gain:.2f}** times" in page
