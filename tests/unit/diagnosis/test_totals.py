"""A profile of which only the totals by category are published, against its MaxText config."""

import pytest
from scripts import experiment


def test_totals_and_plan_share_their_kinds() -> None:
    found = experiment("diagnosis").diagnosis()
    kinds = found.by_kind
    shared = ["matmul", "vector", "attention", "all-reduce"]
    assert set(kinds.index) - {*shared, "idle", "dma"} == set()
    assert (kinds.loc[shared] > 0)[["measured_ps", "predicted_ps"]].all(axis=None)
    assert found.measured_ps == 237_618_721_276
    assert kinds["measured_ps"]["matmul"] / 1e9 == pytest.approx(68.686, abs=1e-3)
    assert kinds["difference_ps"].sum() == found.difference_ps
    assert not any("same program" in note for note in found.notes)
