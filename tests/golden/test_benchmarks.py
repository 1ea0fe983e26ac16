"""The benchmarks: their numbers are what they say, and one that got slower is found."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from extent import thorough
from scripts import EXPERIMENTS
from scripts import script as load

FOLDER = EXPERIMENTS / "benchmarks"
NAMED = {
    *("sweep_first_visit_s", "meshes_first_visit_s", "plans_first_visit_s", "search_530b_s"),
    *("pipelines_first_visit_s", "import_s", "cold_s", "flagship_warm_s", "plans_per_s"),
    *("plans_per_s_placements", "unfolded_512_s", "events_per_s", "simpy_timeouts_per_s"),
}


sys.modules["yardstick"] = load(FOLDER / "yardstick.py")
sys.modules["large_hlo"] = load(FOLDER / "large_hlo.py")
benchmarks = sys.modules["benchmarks"] = load(FOLDER / "benchmarks.py")
script = load(FOLDER / "run.py")


def test_each_benchmark_has_a_stored_ratio_and_a_line_on_the_page() -> None:
    stored = json.loads((FOLDER / "ratios.json").read_text())
    assert set(stored) == set(benchmarks.BENCHMARKS) >= NAMED
    page = (FOLDER / "README.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.M)) == {*stored, "yardstick_s"}


def test_seconds_and_rates_of_known_samples() -> None:
    """Ten units in 2, 1 and 4 s beside a yardstick of half a second."""
    samples = [script.Sample(seconds, 10, 0.5) for seconds in (2, 1, 4)]
    rate, time = (script.Measured(name, samples) for name in ("plans_per_s", "cold_s"))
    assert rate.values == [2.5, 5, 10]
    assert time.values == [0.1, 0.2, 0.4]
    assert rate.ratio == time.ratio == 0.4
    made = script.as_json([rate, time])
    assert (made["plans_per_s"], made["cold_s"], made["yardstick_s"]) == (5, 0.2, 0.5)
    assert made["spread"] == {
        "yardstick_s": [0.5, 0.5], "plans_per_s": [2.5, 10], "cold_s": [0.1, 0.4],
    }  # fmt: skip


def test_what_is_slower_by_half_is_found() -> None:
    stored = {"cold_s": 2.0, "import_s": 1.0, "events_per_s": 3.0}
    found = {"cold_s": 3.1, "import_s": 1.5, "events_per_s": 0.1, "new_s": 1.0}
    slow, unknown = script.slower(found, stored)
    assert slow == "cold_s takes 3.1 yardsticks, 1.55 times the stored 2; 1.5 are allowed"
    assert unknown.startswith("new_s has no stored ratio; run with --store")


def test_one_sample_within_its_bound_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measure(name: str, samples: int | None = None) -> object:
        asked.append(samples)
        return script.Measured(name, [script.Sample(2.9, 1, 1.0)])

    monkeypatch.setattr(script, "measure", measure)
    assert script.checked("cold_s", {"cold_s": 2.0}).ratio == 2.9
    assert asked == [1]


def test_what_seems_slower_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    takes = iter([(5.0, 1), (5.0, None), (4.0, None), (2.0, None), (9.0, None)])

    def measure(name: str, samples: int | None = None) -> object:
        seconds, expected = next(takes)
        assert samples == expected
        return script.Measured(name, [script.Sample(seconds, 1, 1.0)])

    monkeypatch.setattr(script, "measure", measure)
    assert script.checked("cold_s", {"cold_s": 2.0}).ratio == 2.0
    assert next(takes) == (9.0, None)


def test_what_takes_too_long_beside_another_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"many_chips_warm_s": 1.4, "few_chips_warm_s": 1.0}

    def measure(name: str, samples: int | None = None) -> object:
        return script.Measured(name, [script.Sample(seconds[name], 1, 1.0)])

    monkeypatch.setattr(script, "measure", measure)
    (sentence,) = script.too_long({"many_chips_warm_s": 2.0, "few_chips_warm_s": 1.0})
    assert sentence.startswith("many_chips_warm_s takes 1.4 times as long as few_chips_warm_s")
    assert not list(script.too_long({"many_chips_warm_s": 1.2, "few_chips_warm_s": 1.0}))
    seconds["many_chips_warm_s"] = 1.2
    assert not list(script.too_long({"many_chips_warm_s": 2.0, "few_chips_warm_s": 1.0}))


def test_a_benchmark_is_bounded_by_another() -> None:
    """A later visit on 102,400 chips by one on 64; a slow chip of 2,048 by none."""
    assert set(benchmarks.AT_MOST.values()) == {
        ("few_chips_warm_s", 1.3), ("healthy_2048_s", 5.0),
    }  # fmt: skip
    others = {other for other, _ in benchmarks.AT_MOST.values()}
    assert others | set(benchmarks.AT_MOST) <= set(benchmarks.BENCHMARKS)


def test_the_meshes_are_all_products_of_three_powers_of_two() -> None:
    meshes = benchmarks.meshes_of(2048)
    assert len({tuple(mesh.values()) for mesh in meshes}) == len(meshes) == 78
    assert {mesh["data"] * mesh["fsdp"] * mesh["tensor"] for mesh in meshes} == {2048}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "names",
    [
        ("simpy_timeouts_per_s",),
        thorough(("import_s", "simpy_timeouts_per_s")),
        thorough(("unfolded_512_s", "pipelines_first_visit_s")),
    ],
)
def test_the_command_measures_what_it_is_asked_for(names: tuple[str, ...], tmp_path: Path) -> None:
    only = [word for name in names for word in ("--only", name)]
    command = [sys.executable, str(FOLDER / "run.py"), "--out", str(tmp_path), *only]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    made = json.loads((tmp_path / "benchmarks.json").read_text())
    assert set(made) == {"yardstick_s", *names, "spread", "ratios"}
    for name in ("yardstick_s", *names):
        low, high = made["spread"][name]
        assert 0 < low <= made[name] <= high
        assert f"\n{name} " in said
