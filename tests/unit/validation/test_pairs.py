"""Pairs of runs that differ in one decision, and their order, against worked examples."""

from dataclasses import replace
from itertools import combinations
from math import sqrt
from random import Random

import pytest
from unit.validation.test_validation_statistics import done, run
from validated import order_table, summarise_pairs

from tpusim.validation import RunOutcome, Validation
from tpusim.validation.pairs import cost, run_groups, run_pairs

TWO = {"num_slices": 2, "global_batch": 128, "mesh": {"fsdp": 64, "dcn_data": 2}}


def with_notes(one: RunOutcome, **notes: tuple[str, ...]) -> RunOutcome:
    """The outcome, with keys that its source leaves open or facts that no key says."""
    return replace(one, run=replace(one.run, measured=replace(one.run.measured, **notes)))


def steps(measured: list[float], predicted: list[float]) -> list[RunOutcome]:
    """Runs that differ in the batch of a chip, and whose step times are costs."""
    return [
        done(f"b{n}", predicted=p * n, step_s=m * n, global_batch=64 * n)
        for n, (m, p) in enumerate(zip(measured, predicted, strict=True), 1)
    ]


def order(outcomes: list[RunOutcome]) -> dict[str, float]:
    found = summarise_pairs(run_groups(outcomes))
    return {name: found[name] for name in ("pairs", "tau_b", "differing", "ordered_right")}


def test_a_pair_differs_in_one_decision() -> None:
    outcomes = [
        done("one", 10.0), done("two", 11.0, step_s=12.0, **TWO),
        done("other model", 10.0, model={"layers": 3}),
        done("two decisions", 10.0, **TWO, matmul_dtype="int8", gather_dtype="int8"),
        done("another loop", 10.0, loop="synchronous"),
        done("another framework", 10.0, framework="levanter", remat="minimal"),
    ]  # fmt: skip
    found = {(pair.first, pair.second): pair for pair in run_pairs(outcomes)}
    assert set(found) == {("one", "two"), ("two", "two decisions")}
    pair = found["one", "two"]
    assert (pair.decision, pair.change, pair.also) == ("slices", "1 to 2", ())
    assert (pair.measured_ratio, pair.predicted_ratio) == (1.2, pytest.approx(1.1))
    assert pair.error == pytest.approx(1.1 / 1.2 - 1)
    assert found["two", "two decisions"].change == "bf16 to int8"


@pytest.mark.parametrize(
    ("decision", "change", "changes"),
    [
        ("topology", "4x4x4 to 4x4x8",
         {"topology": "4x4x8", "mesh": {"fsdp": 128}, "global_batch": 128}),
        ("chip", "v4 to v5p", {"chip": "v5p", "remat": "minimal", "global_batch": 128,
                               "mesh": {"fsdp": 32, "tensor": 2}}),
        ("mesh", "fsdp=64 to data=2 x fsdp=32", {"mesh": {"data": 2, "fsdp": 32}}),
        ("exchange", "gather to ring",
         {"context_exchange": "ring", "attention_block": (1024, 1024)}),
        ("tiles", "512x512 to 1024x1024", {"attention_block": (1024, 1024)}),
        ("tiles", "1 to 4", {"vocab_tiles": 4}),
        ("remat", "full to minimal", {"remat": "minimal"}),
        ("batch", "1 a chip to 2 a chip", {"global_batch": 128}),
        ("dtype", "f32 to bf16", {"param_dtype": "bf16"}),
    ],
)  # fmt: skip
def test_what_follows_from_a_decision_is_no_other(
    decision: str, change: str, changes: dict[str, object]
) -> None:
    (pair,) = run_pairs([done("a", 10.0), done("b", 10.0, **changes)])
    assert (pair.decision, pair.change) == (decision, change)


@pytest.mark.parametrize(
    "changes",
    [
        {"topology": "4x4x8", "mesh": {"fsdp": 128}},  # half the batch of a chip
        {"remat": "minimal", "global_batch": 128},
        {"chip": "v5p", "seq_len": 256},
        {"optimizer": "muon"},
        {},
    ],
)
def test_two_decisions_or_none_are_no_pair(changes: dict[str, object]) -> None:
    assert run_pairs([done("a", 10.0), done("b", 9.0, **changes)]) == ()


def test_a_pair_names_what_one_source_alone_states() -> None:
    one = with_notes(done("a", 10.0), assumed=("plan.loop", "plan.remat"), unmodelled=("a clock",))
    other = with_notes(done("b", 10.0, vocab_tiles=2), assumed=("plan.vocab_tiles", "plan.remat"))
    (pair,) = run_pairs([one, other])
    assert pair.also == ("loop", "a clock")
    found = summarise_pairs(run_groups([one, other]))
    assert (found["pairs"], found["sharp"]["pairs"]) == (1, 0)


def test_a_pair_without_a_prediction_has_no_error_and_no_order() -> None:
    failed = RunOutcome(run=run("b", step_s=20.0, matmul_dtype="int8"), status="error")
    groups = run_groups([done("a", 10.0), failed])
    ((pair,),) = (group.pairs for group in groups)
    assert (pair.predicted_ratio, pair.error, pair.right) == (None, None, None)
    found = summarise_pairs(groups)
    assert (found["pairs"], found["failed"], found["differing"]) == (1, 1, 0)
    assert (found["tau_b"], found["share_ordered_right"]) == (None, None)


def test_what_cannot_be_a_run_is_in_no_group() -> None:
    never = RunOutcome(run=replace(run("b", remat="minimal"), given=None), status="error")
    assert run_groups([done("a", 10.0), never]) == ()
    with pytest.raises(ValueError, match="b is no run"):
        cost(never, 1.0)


def test_costs_are_chip_seconds_per_sequence() -> None:
    """Twice the chips with the same batch on each take as long a step at the same cost."""
    small = done("a", 10.0)
    large = done("b", 10.0, topology="4x4x8", mesh={"fsdp": 128}, global_batch=128)
    assert cost(small, 10.0) == cost(large, 10.0) == 10.0 * 64 / 64
    (pair,) = run_pairs([small, large])
    assert pair.measured_ratio == pair.predicted_ratio == 1


def test_tau_b_of_a_worked_order() -> None:
    """Of six pairs, one is reversed: (5 - 1) / 6."""
    found = order(steps([1.0, 1.1, 1.2, 1.3], [1.0, 1.2, 1.1, 1.3]))
    assert found == {"pairs": 6, "tau_b": pytest.approx(4 / 6), "differing": 6, "ordered_right": 5}


def test_tau_b_of_a_worked_order_with_ties() -> None:
    """Measured 1 2 2 3, predicted 1 1 2 3: four pairs agree, one is tied in each.

    tau_b = (4 - 0) / sqrt((6 - 1) (6 - 1)) = 0.8. The pair that is tied in the measurement does
    not count as differing, the one that is tied in the prediction is not ordered right.
    """
    found = order(steps([1.0, 2.0, 2.0, 3.0], [1.0, 1.0, 2.0, 3.0]))
    assert found == {"pairs": 6, "tau_b": pytest.approx(0.8), "differing": 5, "ordered_right": 4}


def test_groups_are_not_compared_with_each_other() -> None:
    """Each group has its order right; all runs of the second are predicted too slow."""
    slow = [replace(one, run=replace(one.run, id=f"slow {one.run.id}")) for one in (
        done("a", 90.0, step_s=1.0, loop="synchronous"),
        done("b", 99.0, step_s=1.1, loop="synchronous", vocab_tiles=4),
    )]  # fmt: skip
    fast = [done("a", 10.0, step_s=5.0), done("b", 11.0, step_s=6.0, vocab_tiles=4)]
    assert order([*fast, *slow]) == {"pairs": 2, "tau_b": 1, "differing": 2, "ordered_right": 2}


def test_only_costs_that_differ_by_more_than_noise_are_to_be_ordered() -> None:
    found = order(steps([1.0, 1.029], [1.0, 0.9]))
    assert found == {"pairs": 1, "tau_b": -1, "differing": 0, "ordered_right": 0}
    assert order(steps([1.031, 1.0], [1.0, 0.9]))["differing"] == 1


def random_costs(seed: int) -> tuple[list[float], list[float]]:
    """Measured and predicted costs of seven runs, with ties."""
    draw = Random(seed)
    return [draw.choice((1, 2, 3, 4)) for _ in range(7)], [draw.choice((1, 2, 3)) for _ in range(7)]


@pytest.mark.parametrize("seed", range(20))
def test_a_reversed_prediction_has_the_opposite_tau_b(seed: int) -> None:
    """And pairs that are not tied in the prediction are right in one of both."""
    measured, predicted = random_costs(seed)
    found = order(steps(measured, predicted))
    reverse = order(steps(measured, [5 - p for p in predicted]))
    assert reverse["tau_b"] == pytest.approx(-found["tau_b"])
    assert reverse["differing"] == found["differing"]
    both = list(zip(measured, predicted, strict=True))
    untied = sum(a != c and b != d for (a, b), (c, d) in combinations(both, 2))
    assert reverse["ordered_right"] + found["ordered_right"] == untied


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_the_table_changes_no_statistic(seed: int) -> None:
    outcomes = steps(*random_costs(seed))
    shuffled = Random(seed).sample(outcomes, len(outcomes))
    assert order(shuffled) == pytest.approx(order(outcomes))


def test_tau_b_is_one_with_itself_and_bounded() -> None:
    for seed in range(20):
        measured, predicted = random_costs(seed)
        assert order(steps(measured, measured))["tau_b"] == pytest.approx(1)
        assert abs(order(steps(measured, predicted))["tau_b"]) <= 1 + 1e-12


def test_the_tables_show_decisions_and_what_is_ordered_wrong() -> None:
    outcomes = steps([1.0, 1.1, 1.2, 1.3], [1.0, 1.2, 1.1, 1.3])
    validation = Validation(tuple(outcomes), run_groups(outcomes))
    lines = order_table(validation).splitlines()
    assert lines[2] == "| one decision | 1 | 6 | 0.67 | 6 | 5 | 83.3% |"
    assert lines[4].startswith("| batch | 1 | 6 |")
    assert lines[-1] == "| b2 to b3 | 1.1 to 1.2 | 1.2 to 1.1 | batch, 2 a chip to 3 a chip |"
    text = str(validation)
    assert "b2 to b3" in text
    assert "order of runs that differ in" in text
    (group,) = validation.statistics["pairs"]["each_group"]
    assert [one["id"] for one in group["runs"]] == ["b1", "b2", "b3", "b4"]
    assert group["runs"][1]["measured_cost"] == pytest.approx(1.1)
    assert group["tau_b"] == pytest.approx(4 / sqrt(36))
