"""Ten noisy steps: the true factors are in their intervals.

All intervals of a calibration hold the truth at once with odds of 9 to 1; 200 trials must show it
in 85 %. The usual tests run some of them.
"""

from pathlib import Path

import pytest
from extent import thorough
from noisy_steps import ten_profiled_steps, ten_steps

import tpusim as ts
from tpusim.calibration.calibrate import learnt_from
from tpusim.hardware import Calibration

PROGRAM = Path(__file__).parents[2] / "data" / "hlo" / "decoder_v5p_2x2x1.hlo.gz"
LEAST = 0.85


def holds(truth: dict[str, float], found: Calibration) -> bool:
    return all(each.low <= truth[name] <= each.high for name, each in found.factors)


@pytest.mark.parametrize("trials", [thorough(200)])
def test_profiles_recover_the_factors(trials: int) -> None:
    pod = ts.Slice("v5p", "2x2x1")
    held = 0
    for seed in range(trials):
        truth, source = ten_profiled_steps(seed, PROGRAM, pod)
        held += holds(truth, learnt_from([source]))
    assert held >= LEAST * trials


@pytest.mark.parametrize("trials", [thorough(200)])
def test_steps_alone_recover_the_factors(trials: int) -> None:
    held = 0
    for seed in range(trials):
        truth, runs = ten_steps(seed)
        held += holds(truth, ts.calibrate(runs))
    assert held >= LEAST * trials
