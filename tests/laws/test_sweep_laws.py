"""Laws of sweeps, over random models, slices and rules."""

import random

import pytest
from extent import seeds
from many_plans import RESULT_NUMBERS, breakdown_labels, simulate_chunk, sweep_columns, sweep_frame
from pandas import DataFrame, concat
from test_any_plan import random_model, random_plan, random_rules

from tpusim.hardware import Slice
from tpusim.sweeps import Space, candidates, sweep

PODS = (("v4", "2x2x4", 1), ("v5e", "4x4", 1), ("v5e", "4x4", 2), ("7x", "2x2x2", 1))


@pytest.mark.parametrize("seed", seeds(12))
def test_a_random_sweep_has_a_row_for_every_plan(seed: int) -> None:
    rng = random.Random(seed)
    pod = Slice(*rng.choice(PODS))
    base = random_plan(rng, pod)
    inside = [axis for axis in base.mesh if not axis.startswith("dcn_")]
    space = Space(
        base=base, axes=inside, placements=rng.choice(["best", "all"]),
        vary={"rules": [{}, random_rules(rng, inside)], "global_batch": [pod.devices, 3]},
    )  # fmt: skip
    table = sweep(random_model(rng), space, pod, workers=1)
    tried = list(candidates(space, pod))
    assert len(table) == len(tried)
    assert set(table["status"]) <= {"ok", "does not fit", "refused"}
    assert ((table["reason"] == "") == (table["status"] == "ok")).all()
    assert (table["fits"] == (table["status"] == "ok")).all()
    assert (table["fits"] <= (table["hbm_peak_bytes"] <= table["hbm_bytes"])).all()
    ran = table[table["status"] != "refused"]
    parts = ran[list(breakdown_labels(axis for axis in base.mesh if (table[axis] > 1).any()))]
    assert parts.sum(axis=1).to_numpy() == pytest.approx(ran["step_time_s"].to_numpy())
    assert parts.filter(like="exposed").sum(axis=1).to_numpy() == pytest.approx(
        ran["exposed_s"].to_numpy(), abs=1e-15
    )
    assert ran[list(RESULT_NUMBERS)].notna().all(axis=None)
    assert table[table["status"] == "refused"]["step_time_s"].isna().all()


@pytest.mark.parametrize("seed", seeds(24, default=1))
def test_every_row_of_a_random_sweep_is_the_plan_that_was_tried(seed: int) -> None:
    """Also in a frame with gaps, whose whole numbers are floats, and of refused plans."""
    rng = random.Random(seed)
    pod = Slice(*rng.choice(PODS))
    base = random_plan(rng, pod)
    inside = [axis for axis in base.mesh if not axis.startswith("dcn_")]
    vary = {
        "rules": [{}, random_rules(rng, inside)], "global_batch": [pod.devices, 3],
        "save": [[], ["q"], ["q", "k"]], "scan_layers": [True, False],
        "remat": rng.sample(["full", "minimal", "none"], 2),
    }  # fmt: skip
    space = Space(
        base=base, axes=inside, placements=rng.choice(["best", "all"]),
        vary={key: vary[key] for key in rng.sample(sorted(vary), 2)},
    )  # fmt: skip
    tried = list(candidates(space, pod))[:40]
    columns = sweep_columns(base.mesh, base.mesh, list(space.vary))
    rows = simulate_chunk(random_model(rng), tried)
    frame = sweep_frame(columns, tried, rows)
    gaps = concat([frame, DataFrame([{"status": "refused"}])], ignore_index=True)
    for number, each in enumerate(tried):
        expected = each.plan
        if space.placements == "all":
            written = each.placement.written if each.placement else {}
            expected = expected.replace(placement=written or None)
        for row in (frame.iloc[number], frame.iloc[number].to_dict(), gaps.iloc[number]):
            assert space.plan(row) == expected
            assert space.plan(row).flat() == expected.flat()
            assert space.slice(row, pod) == each.pod


@pytest.mark.thorough
def test_axes_in_another_order_give_the_same_plans() -> None:
    rng = random.Random(1)
    pod, model = Slice("v5e", "4x4"), random_model(rng)
    base = random_plan(rng, pod)
    axes = ["data", "fsdp", "tensor"]
    one, two = (
        sweep(model, Space(base=base, axes=order), pod, workers=1) for order in (axes, axes[::-1])
    )
    keyed = [table.set_index(axes)["step_time_s"].sort_index() for table in (one, two)]
    assert keyed[0].round(15).equals(keyed[1].round(15))
