"""Rows of a sweep's frame as plans: the numbers of a row are those of its plan and slice."""

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from search_spaces import BASE, MODEL, POD, space

from tpusim.base import PlanError
from tpusim.hardware import Slice
from tpusim.plan import Plan
from tpusim.report import mesh_heatmap_data, plot_mesh_heatmap, plot_ranking, ranking_data
from tpusim.simulation import simulate
from tpusim.sweeps import SearchAxis, Space, candidates, sweep

VARIED = {
    "remat": ["full", "none"],
    "save": [[], ["q", "k"]],
    "rules": [{}, {"mlp": ["fsdp", "tensor"]}],
    "dtypes.gather": ["", "bf16"],
    "scan_layers": [True, False],
    "microbatches": [1, 2],
}


def frame_of(given: Space, pod: Slice = POD) -> pd.DataFrame:
    return sweep(MODEL, given, pod, workers=1)


@pytest.mark.thorough
def test_a_row_is_the_plan_that_was_tried() -> None:
    given = space(axes=("tensor",), vary=VARIED, base=BASE.replace(mesh={"fsdp": 8, "tensor": 2}))
    frame = frame_of(given)
    tried = list(candidates(given, POD))
    assert [given.plan(row) for _, row in frame.iterrows()] == [each.plan for each in tried]
    assert [given.plan(row) for row in frame.to_dict("records")] == [each.plan for each in tried]


@pytest.mark.thorough
def test_a_row_that_was_read_from_a_file_is_too(tmp_path: Path) -> None:
    given = space(vary={"remat": ["full", "none"], "save": [[], ["q", "k"]]})
    frame = frame_of(given)
    frame.to_parquet(tmp_path / "table.parquet")
    text = frame.to_csv(index=False)
    for read in (pd.read_parquet(tmp_path / "table.parquet"), pd.read_csv(StringIO(text))):
        plans = [given.plan(row) for _, row in read.iterrows()]
        assert plans == [each.plan for each in candidates(given, POD)]


def test_a_row_of_all_placements_has_its_own() -> None:
    given = Space(base=BASE, meshes=[{"fsdp": 4, "tensor": 4}], placements="all")
    frame = frame_of(given)
    for row in frame.to_dict("records"):
        plan = given.plan(row)
        result = simulate(MODEL, plan, POD)
        assert str(result.placement) == row["placement"]
        assert result.step_time_s == row["step_time_s"]
        assert plan == BASE.replace(mesh={"fsdp": 4, "tensor": 4}, placement=row["placement"])


def test_the_best_placement_is_fixed_on_request() -> None:
    given = space()
    row = frame_of(given).iloc[4]
    assert given.plan(row).placement is None
    fixed = given.plan(row).replace(placement=row["placement"])
    assert simulate(MODEL, fixed, POD).step_time_s == row["step_time_s"]


def test_a_row_has_its_slice() -> None:
    pod = Slice("v4", "4x4x8")
    given = Space(base=Plan(mesh={"fsdp": 128}, seq_len=64, global_batch=128), shapes="all+twisted")
    frame = frame_of(given, pod)
    assert set(frame["topology"]) == {"4x4x8", "4x4x8_twisted"}
    found = [given.slice(row, pod) for _, row in frame.iterrows()]
    assert found == [each.pod for each in candidates(given, pod)]
    assert space().slice(frame_of(space()).iloc[0], POD) == POD


COUNT = SearchAxis(
    lambda candidate: (1, 2),
    lambda candidate, count: replace(
        candidate, pod=Slice(candidate.pod.chip, str(candidate.pod.topology), count)
    ),
    "num_slices",
)


def test_search_axes_of_ones_own_need_the_slice() -> None:
    base = Plan(mesh={"fsdp": 16}, seq_len=64, global_batch=64)
    given = Space(base=base, axes=("dcn_data", "fsdp"), extra_axes=(COUNT,))
    frame = frame_of(given)
    for row, tried in zip(frame.to_dict("records"), candidates(given, POD), strict=True):
        assert (given.plan(row, POD), given.slice(row, POD)) == (tried.plan, tried.pod)
    with pytest.raises(PlanError, match=r"search axes of its own.*write space.plan\(row, pod\)"):
        given.plan(frame.iloc[0])
    with pytest.raises(PlanError, match="does not say the value of the search axis 'num_slices'"):
        given.plan({"fsdp": 16, "dcn_data": 1}, POD)


def test_a_key_without_a_value_is_the_base_s() -> None:
    """Two sweeps in one frame have NaN for what only the other varied, and sizes as floats."""
    one, other = space(vary={"remat": ["none"]}), space(axes=("fsdp",), vary={"microbatches": [2]})
    both = pd.concat([frame_of(one), frame_of(other)], ignore_index=True)
    assert both["microbatches"].isna().any()
    plan = one.plan(both.iloc[0])
    assert plan == one.plan(frame_of(one).iloc[0])
    assert other.plan(both.iloc[-1]) == BASE.replace(microbatches=2)
    assert other.plan(both.iloc[0].drop("fsdp").to_dict() | {"fsdp": 16}) == BASE
    assert len(mesh_heatmap_data(both).cells) == len(mesh_heatmap_data(frame_of(one)).cells)


BAD_ROWS: list[tuple[Any, str]] = [
    ("row", "the row is 'row'; give one row of the sweep's frame, such as frame.iloc"),
    (None, "the row is None"),
    (pd.DataFrame({"fsdp": [1, 2]}), "the row is a frame of 2 rows; give one row"),
    ({"fsdp": 16, "data": 1}, "the row has no size of the mesh axis 'tensor'"),
    ({"fsdp": 16, "data": 1, "tensor": float("nan")}, "no size of the mesh axis 'tensor'"),
    ({"fsdp": 2.5, "data": 1, "tensor": 1}, "the row has 2.5 for the mesh axis 'fsdp'"),
    ({"fsdp": "x", "data": 1, "tensor": 1}, "the row has 'x' for the mesh axis 'fsdp'"),
    ({"fsdp": 16, "data": 1, "tensor": 1, "remat": "ful"}, "plan.remat is 'ful': did you mean"),
]


@pytest.mark.parametrize(("row", "sentence"), BAD_ROWS)
def test_what_is_no_row_is_refused(row: Any, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        space(vary={"remat": ["full"]}).plan(row)


def test_a_mesh_that_the_space_does_not_list_is_refused() -> None:
    given = Space(base=BASE, meshes=[{"fsdp": 16}, {"data": 16}])
    assert given.plan({"fsdp": 1, "data": 16}).mesh == {"data": 16}
    with pytest.raises(PlanError, match="a mesh that is not among sweep"):
        given.plan({"fsdp": 4, "data": 4})
    with pytest.raises(PlanError, match="the row has no topology"):
        Space(base=BASE, shapes="all").slice({}, POD)


def test_numpy_s_values_are_a_plan_s() -> None:
    plan = Plan(
        mesh={"fsdp": np.int64(8), "tensor": np.float64(2)}, seq_len=np.int32(64),
        global_batch=np.float64(32), input_s=np.float32(0.5), scan_layers=np.bool_(False),
        remat=np.str_("none"), save=np.array(["q", "k"]), experts={"seed": np.uint8(3)},
    )  # fmt: skip
    same = Plan(
        mesh={"fsdp": 8, "tensor": 2}, seq_len=64, global_batch=32, input_s=0.5,
        scan_layers=False, remat="none", save=["q", "k"], seed=3,
    )  # fmt: skip
    assert plan == same
    assert repr(plan) == repr(same)
    assert BASE.replace(microbatches=np.int64(4)) == BASE.replace(microbatches=4)


@pytest.mark.parametrize("missing", [float("nan"), np.float64("nan"), pd.NA, pd.NaT])
@pytest.mark.parametrize("key", ["global_batch", "remat", "save", "placement", "scan_layers"])
def test_what_a_frame_does_not_hold_is_no_value(key: str, missing: Any) -> None:
    sentence = rf"plan.{key} is .*, which a data frame has where a row holds no value; leave the k"
    with pytest.raises(PlanError, match=sentence):
        BASE.replace(**{key: missing})


def test_nor_is_half_a_device() -> None:
    with pytest.raises(PlanError, match=r"plan.mesh.fsdp is nan, which a data frame has"):
        BASE.replace(mesh={"fsdp": np.nan})
    with pytest.raises(PlanError, match=r"plan.mesh.fsdp is 2.5; it must be a whole number"):
        BASE.replace(mesh={"fsdp": np.float64(2.5)})


@pytest.mark.thorough
def test_a_frame_goes_into_both_figures() -> None:
    frame = frame_of(space(vary={"remat": ["full", "none"]}))
    ranked, of_data = plot_ranking(frame), plot_ranking(ranking_data(frame))
    assert len(ranked.patches) == len(of_data.patches)
    cells = [text.get_text() for text in plot_mesh_heatmap(frame).texts]
    assert cells == [text.get_text() for text in plot_mesh_heatmap(mesh_heatmap_data(frame)).texts]
    assert plot_mesh_heatmap(frame, x="data", y="fsdp").get_xlabel() == "data [devices]"


def test_the_bubble_of_a_pipeline_is_in_the_ranking() -> None:
    base = Plan(mesh={"stage": 2, "fsdp": 8}, seq_len=64, global_batch=64, microbatches=4)
    frame = frame_of(Space(base=base, axes=("stage", "fsdp")))
    assert frame["bubble"].any()
    for ranked in ranking_data(frame):
        assert sum(ranked.breakdown_s.values()) == pytest.approx(ranked.step_time_s)
