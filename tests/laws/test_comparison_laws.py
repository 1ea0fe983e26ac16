"""Laws of comparisons, over random plans on random slices, and programs beside them.

Results of different slices, models and plans are compared, so most labels stand on one side only.
"""

import json
import random
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from extent import seeds
from reports import read_step, step_of
from test_any_plan import PODS, SEVERAL, random_model, random_plan

from tpusim.base import TpusimError
from tpusim.hardware import Slice
from tpusim.report import compare, document, waterfall_data
from tpusim.results import PICO, Result, breakdown_ps, with_sorted_axes
from tpusim.simulation import simulate


@cache
def result(seed: int) -> Result:
    """A random result; a plan that is refused gives way to the next."""
    for number in range(100):
        rng = random.Random(1000 * seed + number)
        pod = Slice(*rng.choice(PODS + SEVERAL))
        try:
            return simulate(random_model(rng), random_plan(rng, pod), pod)
        except TpusimError:
            continue
    raise AssertionError


SEEDS = seeds(200)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_parts_sum_to_the_difference_to_the_picosecond(seed: int) -> None:
    a, b = result(seed), result(seed + 1)
    found = compare(a, b)
    difference = b.timeline.total_ps - a.timeline.total_ps
    assert found.difference_ps == difference
    assert sum(found.parts_ps.values()) == difference
    assert sum(found.differences[0].phases_ps.values()) == difference
    sizes = [abs(ps) for ps in found.parts_ps.values()]
    assert sizes == sorted(sizes, reverse=True)
    facts = found.facts()
    assert sum(facts["parts_s"].values()) == pytest.approx(facts["difference_s"], abs=1e-12)
    assert facts["b_s"] - facts["a_s"] == pytest.approx(facts["difference_s"], abs=1e-12)
    assert compare(b, a).parts_ps == {cause: -ps for cause, ps in found.parts_ps.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_is_the_timeline_of_its_result(seed: int) -> None:
    """Several axes are under one label, whatever their order."""
    given = result(seed)
    step = step_of(given)
    assert step.step_ps == given.timeline.total_ps == sum(step.breakdown_ps.values())
    each: Counter[str] = Counter()
    for label, ps in breakdown_ps(given.timeline).items():
        each[with_sorted_axes(label)] += ps
    assert step.breakdown_ps == {label: ps for label, ps in each.items() if ps}
    assert step.title == given.title
    assert step.settings["placement"] == str(given.placement)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_result_file_gives_the_same_step(seed: int, tmp_path: Path) -> None:
    given = result(seed)
    (tmp_path / "result.json").write_text(json.dumps(document(given)), "utf-8")
    read, direct = read_step(tmp_path), step_of(given)
    assert (read.breakdown_ps, read.phases_ps) == (direct.breakdown_ps, direct.phases_ps)
    found = compare(given, tmp_path)
    assert set(found.parts_ps.values()) <= {0}
    assert found.different_settings == {}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_waterfall_ends_at_the_second_step(seed: int) -> None:
    found = compare(result(seed), result(seed + 1))
    bars = waterfall_data(found.differences[0])
    assert bars[0].end_ps == found.steps[0].step_ps
    assert bars[-1].end_ps == found.steps[1].step_ps
    level = bars[0].end_ps
    for bar in bars[1:-1]:
        assert bar.start_ps == level
        level = bar.end_ps
    assert level == bars[-1].end_ps


@pytest.mark.parametrize("seed", SEEDS)
def test_the_table_has_the_breakdowns(seed: int) -> None:
    given = result(seed), result(seed + 1), result(seed + 2)
    table = compare(*given).table.set_index("quantity")
    for name, each in zip("ABC", given, strict=True):
        parts = table.loc[[q for q, unit in table["unit"].items() if unit == "s"], name]
        assert parts.drop("step_time_s").sum() == pytest.approx(each.timeline.total_ps * PICO)
        assert table.loc["hbm_peak_bytes", name] == each.hbm_peak_bytes
