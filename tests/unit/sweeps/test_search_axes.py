"""A search axis of one's own: one entry, given to the space."""

from dataclasses import replace
from pathlib import Path

import pytest
from pandas import read_parquet
from pandas.testing import assert_frame_equal
from search_spaces import MODEL, space

from tpusim.base import PlanError
from tpusim.hardware import Slice
from tpusim.plan import Plan
from tpusim.simulation import simulate
from tpusim.sweeps import SearchAxis, Space, SweepCandidate, candidates, sweep

POD = Slice("v5e", "4x4")


def on_slice(candidate: SweepCandidate, num_slices: int, ratio: float = 1.0) -> SweepCandidate:
    pod = candidate.pod
    shape = str(pod.topology)
    return replace(candidate, pod=Slice(pod.chip, shape, num_slices, dcn_oversubscription=ratio))


NUM_SLICES = SearchAxis(lambda candidate: (1, 2), on_slice, "num_slices")
"""The number of slices, which `dcn_` axes of the mesh then divide."""

OVERSUBSCRIPTION = SearchAxis(
    lambda candidate: (1.0, 50.0) if candidate.pod.num_slices > 1 else (1.0,),
    lambda candidate, ratio: on_slice(candidate, candidate.pod.num_slices, ratio),
    "dcn_oversubscription",
)
"""Oversubscription of the uplinks to the data centre network, where there are several slices."""

BASE = Plan(mesh={"fsdp": 16}, seq_len=64, global_batch=64)
SPACE = Space(
    base=BASE,
    axes=("dcn_data", "fsdp"),
    vary={"remat": ["full", "none"]},
    extra_axes=(NUM_SLICES, OVERSUBSCRIPTION),
)


def test_its_values_are_a_column_and_reach_the_simulation(tmp_path: Path) -> None:
    table = sweep(MODEL, SPACE, POD, workers=1, out=tmp_path)
    names = ["dcn_data", "fsdp", "remat", "num_slices", "dcn_oversubscription", "placement"]
    assert list(table.columns[: len(names)]) == names
    assert list(table["num_slices"]) == [1, 2, 2] * 2
    assert list(table["dcn_data"]) == [1, 2, 2] * 2
    assert list(table["dcn_oversubscription"]) == [1.0, 1.0, 50.0] * 2
    assert set(table["status"]) == {"ok"}
    for row, candidate in zip(table.to_dict("records"), candidates(SPACE, POD), strict=True):
        ratio = row["dcn_oversubscription"]
        pod = Slice("v5e", "4x4", row["num_slices"], dcn_oversubscription=ratio)
        assert candidate.pod == pod
        assert row["step_time_s"] == simulate(MODEL, candidate.plan, pod).step_time_s
    assert table.loc[2, "step_time_s"] > table.loc[1, "step_time_s"]
    assert_frame_equal(read_parquet(tmp_path), table)
    assert_frame_equal(sweep(MODEL, SPACE, POD, workers=2), table)


def test_its_column_has_a_name_of_its_own() -> None:
    with pytest.raises(PlanError, match="the search axis 'mfu' has the name of a column"):
        sweep(MODEL, space(extra_axes=[replace(NUM_SLICES, column="mfu")]), POD, workers=1)
