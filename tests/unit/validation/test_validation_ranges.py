"""Ranges in a validation: left out by family, counted, and drawn."""

from dataclasses import replace
from math import log

import pytest
from reports import (
    MeasuredPoint,
    plot_predicted_measured,
    predicted_measured_svg,
    predicted_measured_title,
)
from unit.accuracy.test_measured_errors import RUN
from unit.validation.test_validation_statistics import done, run
from validated import family_of, points, range_statistics, residual_rows

from tpusim.accuracy import measured_errors, residuals
from tpusim.models import Transformer
from tpusim.validation import Validation

MODEL = Transformer(layers=2, embed=512, mlp=2048, heads=4, vocab=1000)
OWN = residuals()[3]


def test_the_runs_of_one_model_by_one_framework_are_a_family() -> None:
    base = family_of(run("a", framework="maxtext"), MODEL)
    assert base == "maxtext 2x512x2048 vocab 1000"
    same = run("b", framework="maxtext", chip="v5p", matmul_dtype="int8")
    assert family_of(same, MODEL) == base
    assert family_of(run("c", framework="levanter"), MODEL) != base
    assert family_of(run("d", framework="maxtext"), replace(MODEL, layers=3)) != base
    assert family_of(run("e", framework="maxtext"), replace(MODEL, name="another name")) == base


def test_the_mlp_of_a_family_is_that_of_its_layers() -> None:
    experts = {"experts": 8, "experts_per_token": 2, "expert_mlp": 96}
    one = run("a", framework="maxtext")
    assert family_of(one, MODEL.replace(**experts)) == "maxtext 2x512x96 vocab 1000"
    some = MODEL.replace(**experts, dense_layers=1)
    assert family_of(one, some) == "maxtext 2x512x2048 vocab 1000"


def test_a_run_is_left_out_of_its_own_range_with_its_family() -> None:
    one = replace(done("a", 10.0), features=OWN.features, family=OWN.family)
    errors = measured_errors()
    assert one.error_range == errors.range(OWN.features, without=OWN.family)
    assert one.error_range != errors.range(OWN.features)
    assert one.like_measured == one.error_range.measured
    assert (one.low_s, one.high_s) == one.error_range.of(10.0)


def test_coverage_and_half_width_of_a_worked_example() -> None:
    """The measured time is 10 s: in the middle of the first range, far outside of the second."""
    found = measured_errors().range(OWN.features, without=OWN.family)
    middle = 10.0 / ((found.low + found.high) / 2)
    inside, outside = (
        replace(done(name, predicted), features=OWN.features, family=OWN.family)
        for name, predicted in (("in", middle), ("out", 100.0))
    )
    assert (inside.in_range, outside.in_range) == (True, False)
    statistics = range_statistics([inside, outside, done("without", 10.0)])
    assert statistics["coverage_80"] == 0.5
    assert statistics["median_half_width"] == pytest.approx(found.half_width)


def test_without_ranges_there_is_nothing_to_count() -> None:
    one = done("a", 10.0)
    assert (one.error_range, one.low_s, one.high_s, one.in_range, one.like_measured) == (None,) * 5
    assert range_statistics([one]) == {"coverage_80": None, "median_half_width": None}


def test_the_residual_is_the_logarithm_of_measured_over_predicted() -> None:
    one = replace(done("a", 8.0), features=RUN, family="kin")
    (row,) = residual_rows(Validation((one, done("no features", 8.0)), ()))
    assert (row.id, row.family, row.features) == ("a", "kin", RUN)
    assert row.residual == pytest.approx(log(10 / 8))


def test_the_figure_has_a_marker_and_a_whisker_for_each_run() -> None:
    data = (
        MeasuredPoint("v4", 10.0, 10.9, 9.0, 12.0),
        MeasuredPoint("v5e", 1.0, 2.0, 0.9, 1.2),
        MeasuredPoint("mine", 5.0, 5.0, 4.0, 4.9),
    )
    text = "3 measured runs: 2 predicted within 10%, 1 within their 80 % range"
    assert predicted_measured_title(data) == text
    axes = plot_predicted_measured(data)
    drawn = [tuple(map(tuple, line.get_data())) for line in axes.get_lines()]
    for point in data:
        across = (point.predicted_s, point.predicted_s)
        assert (across, (point.low_s, point.high_s)) in drawn
        assert ((point.predicted_s,), (point.measured_s,)) in drawn
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["within 10%", "v4", "v5e", "other"]
    assert f"<title>{text}</title>".encode() in predicted_measured_svg(data)


def test_the_points_of_the_figure_are_the_runs_with_a_range() -> None:
    one = replace(done("a", 8.0), features=RUN, family="kin")
    (point,) = points(Validation((one, done("no features", 8.0)), ()))
    assert (point.chip, point.predicted_s, point.measured_s) == ("v4", 8.0, 10.0)
    assert (point.low_s, point.high_s) == (one.low_s, one.high_s)
