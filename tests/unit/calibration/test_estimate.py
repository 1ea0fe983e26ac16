"""The regression: what rows say, what they cannot, and what physics forbids."""

import numpy as np
import pytest

from tpusim.calibration.estimate import Rows, estimate

SPREADS = np.array([0.1, 0.1])
OPEN = np.array([-9.0, -9.0])


def rows(ratios: list[float], elasticities: list[list[float]], group: str = "steps") -> Rows:
    count = len(ratios)
    return Rows(np.array(ratios), np.array(elasticities), (group,) * count, np.ones(count))


def test_many_rows_are_believed() -> None:
    shares = np.random.default_rng(0).uniform(0, 1, (50, 2))
    found = estimate(rows((shares @ [0.2, -0.1]).tolist(), shares.tolist()), SPREADS, OPEN)
    assert found.mean == pytest.approx([0.2, -0.1], abs=0.005)
    assert found.scales["steps"] < 0.02


def test_one_row_moves_its_biggest_part_most_and_not_all_the_way() -> None:
    found = estimate(rows([0.1], [[0.8, 0.2]]), SPREADS, OPEN)
    assert found.mean[0] > 3 * found.mean[1] > 0
    assert found.mean @ [0.8, 0.2] < 0.1


def test_a_single_row_far_off_is_mostly_error() -> None:
    near, far = (estimate(rows([r], [[0.8, 0.2]]), SPREADS, OPEN).mean[0] for r in (0.1, 1.0))
    assert far < 10 * near / 2


def test_what_no_row_has_stays_what_it_was() -> None:
    found = estimate(rows([0.1, 0.1], [[1.0, 0.0]] * 2), SPREADS, OPEN)
    assert found.mean[1] == pytest.approx(0)
    assert np.sqrt(found.covariance[1, 1]) == pytest.approx(0.1, rel=0.01)


def test_what_always_comes_together_cannot_be_told_apart() -> None:
    found = estimate(rows([0.1] * 30, [[0.5, 0.5]] * 30), SPREADS, OPEN)
    spread = np.sqrt(np.diag(found.covariance))
    assert found.covariance[0, 1] / spread.prod() < -0.9


def test_a_factor_at_its_bound_leaves_the_rest_to_the_others() -> None:
    shares = np.random.default_rng(1).uniform(0, 1, (50, 2))
    ratios = (shares @ [-0.3, 0.1]).tolist()
    found = estimate(rows(ratios, shares.tolist()), SPREADS, np.array([-0.1, -9.0]))
    assert found.mean[0] == -0.1
    assert found.held.tolist() == [True, False]
    assert found.mean[1] < 0.05
    assert found.covariance[0, 0] > 0


def test_groups_have_errors_of_their_own() -> None:
    rng = np.random.default_rng(2)
    noisy = rows(rng.normal(0, 0.5, 80).tolist(), [[1.0, 0.0]] * 80, "noisy")
    exact = rows(rng.normal(0.1, 0.01, 80).tolist(), [[1.0, 0.0]] * 80, "exact")
    found = estimate(Rows.joined([noisy, exact]), SPREADS, OPEN)
    assert found.mean[0] == pytest.approx(0.1, abs=0.01)
    assert found.scales["noisy"] > 10 * found.scales["exact"]
