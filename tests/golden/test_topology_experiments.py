"""The experiments on topologies: what they find, and that their pages say it."""

import re
import sys
from functools import cache

import pandas
import pytest
from scripts import EXPERIMENTS, experiment, script


def bold(name: str) -> list[str]:
    """The bold numbers of the experiment's page, in their order."""
    return re.findall(r"\*\*([\d.]+)\*\*", (EXPERIMENTS / name / "README.md").read_text("utf-8"))


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> pandas.Series:
    """The ratios that `--quick` writes."""
    folder = tmp_path_factory.mktemp("topology_512")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["run.py", "--quick", "--out", str(folder)])
        experiment("topology_512").main()
    assert {path.name for path in folder.iterdir()} >= {"ratios.svg", "plans.svg", "best.csv"}
    return pandas.read_csv(folder / "ratios.csv").iloc[0]


@cache
def ends() -> pandas.DataFrame:
    """The ratios of the smallest and the largest model."""
    run = experiment("topology_512")
    return run.ratios(run.table((run.EMBEDS[0], run.EMBEDS[-1])))


@cache
def scaled() -> pandas.DataFrame:
    return experiment("all_to_all").scaling()


@cache
def twisted() -> pandas.DataFrame:
    return experiment("all_to_all").twists(("4x4x8", "4x8x8")).set_index("shape")


@pytest.mark.thorough
def test_the_revised_plan_is_faster_as_published(quick: pandas.Series) -> None:
    """Faster by more than a half, and by the sharding: the shapes are within 5 %."""
    assert quick["first_to_best"] > 1.5
    assert quick["sharding"] > 1.5
    assert quick["shape"] == pytest.approx(1, abs=0.05)


@pytest.mark.thorough
def test_smaller_models_gain_more_from_the_revision(quick: pandas.Series) -> None:
    smallest, largest = ends()["first_to_best"]
    assert smallest > quick["first_to_best"] > largest > 1


@pytest.mark.thorough
def test_the_page_on_shapes_says_the_numbers_of_today(quick: pandas.Series) -> None:
    found = [quick["first_to_best"], quick["sharding"], quick["shape"], *ends()["first_to_best"]]
    assert bold("topology_512") == [f"{ratio:.2f}" for ratio in found]


def test_the_page_has_todays_table_of_gpt3(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published ratio, 1.19, is between those of one and of two sequences a device."""
    monkeypatch.setitem(sys.modules, "run", experiment("topology_512"))
    table = "\n".join(script(EXPERIMENTS / "topology_512" / "gpt3.py").table())
    assert table in (EXPERIMENTS / "topology_512" / "README.md").read_text("utf-8")
    ratios = [float(line.split("|")[-2]) for line in table.splitlines()[2:]]
    assert min(ratios) < 1.19 < max(ratios)


def test_an_all_to_all_takes_twice_as_long_on_twice_the_longest_dimension() -> None:
    """On tori, but for launch and hops: 4x4, 8x8, 16x16 and 32x32 chips."""
    squares = scaled()[scaled()["chips"].isin(["4x4", "8x8", "16x16", "32x32"])]["torus_32MB_s"]
    assert (squares / squares.shift()).dropna().tolist() == pytest.approx([2, 2, 2], rel=0.02)


def test_the_page_on_all_to_alls_says_the_numbers_of_today() -> None:
    run = experiment("all_to_all")
    columns = ("torus_32MB_s", "torus_8MB_s", "v3_32MB_s", "v3_8MB_s")
    tori, wraps = [[f"{run.growth(scaled(), column):.1f}" for column in pair]
                   for pair in (columns[:2], columns[2:])]  # fmt: skip
    gains = [f"{gain:.3f}" for gain in twisted()["gain"]]
    first = twisted().loc["4x4x8"]
    faster = [f"{first[f'regular_{kind}_s'] / first[f'twisted_{kind}_s']:.2f}"
              for kind in ("all_gather", "all_reduce")]  # fmt: skip
    assert bold("all_to_all") == [*tori, *gains, *wraps, *faster]


def test_a_twist_gains_more_than_was_measured_and_less_than_its_cut() -> None:
    rows = twisted()
    assert (rows["gain"] > rows["measured"]).all()
    assert (rows["gain"] < 1.08 * rows["measured"]).all()
    assert (rows["twisted_bisection_links"] == 2 * rows["regular_bisection_links"]).all()
