"""What a sweep says on a terminal."""

from many_plans import best_plans, sweep_text
from search_spaces import BASE, MODEL, POD, space

from tpusim.sweeps import Space, sweep


def test_the_fastest_that_fits_is_on_top() -> None:
    table = sweep(MODEL, space(), POD, workers=1)
    lines = sweep_text(table, "a sweep").splitlines()
    assert lines[:2] == [
        "sweep       a sweep",
        f"            {len(table)} fit, 0 do not fit, 0 refused",
    ]
    first = table.loc[table["step_time_s"].idxmin()]
    assert lines[5].split()[0] == str(first["data"])
    assert len(lines) == 5 + 10
    assert max(map(len, lines)) <= 100


def test_a_plan_is_listed_once_with_its_best_placement() -> None:
    table = sweep(MODEL, space(placements="all"), POD, workers=1)
    shown = best_plans(table, 100)
    shapes = list(shown[["data", "fsdp", "tensor"]].itertuples(index=False, name=None))
    assert len(shapes) == len(set(shapes)) == 15
    fastest = table.groupby(["data", "fsdp", "tensor"])["step_time_s"].min()
    assert [fastest[shape] for shape in shapes] == list(shown["step_time_s"])


def test_where_none_fits_the_smallest_is_on_top() -> None:
    table = sweep(MODEL, Space(base=BASE, vary={"global_batch": [3_200_000, 2_400_000]}), POD)
    lines = sweep_text(table, "").splitlines()
    assert "none fits; those that need the least memory" in lines
    assert lines[-2].split()[2] == "2400000"


def test_reasons_that_differ_in_numbers_alone_are_one_line() -> None:
    table = sweep(MODEL, space(vary={"global_batch": [17]}), POD, workers=1)
    said = sweep_text(table, "")
    assert "refused     14, such as: plan.global_batch is 17, which " in said
    assert "other reason" not in said
