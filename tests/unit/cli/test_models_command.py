"""`tpusim models`: the table of published models, and the page of one."""

import json
import tomllib

import pytest
from commands import said

from tpusim import models
from tpusim.base.units import format_count
from tpusim.cli.models_command import LEAST_COLUMNS


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(LEAST_COLUMNS))


@pytest.mark.thorough
def test_the_table_has_each_model_and_fits(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(["models"], capsys)
    lines = out.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= LEAST_COLUMNS
    rows = [line.split() for line in lines if line.startswith("  ")]
    assert [row[0] for row in rows] == list(models.names())
    assert {row[0]: row[1] for row in rows}["llama3.1-8b"] == "8.03B"


@pytest.mark.thorough
def test_the_table_is_as_wide_as_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert models.source("llama3.1-8b") in said(["models"], capsys)[1]


def test_json_has_each_model_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(said(["models", "--json"], capsys)[1])
    assert [one["name"] for one in listed] == list(models.names())
    assert all(one["parameters"] > 0 and one["source"] for one in listed)


@pytest.mark.parametrize("name", ["llama3.1-8b", "deepseek-v3", "t5-11b", "resnet-50", "clip-b/16"])
def test_the_page_of_a_model_is_the_model(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(["models", name], capsys)[1]
    assert max(map(len, out.splitlines())) <= LEAST_COLUMNS
    assert f"{models.load(name).parameter_count:,}" in out
    written = tomllib.loads(out.split("in a run file\n")[1])
    assert written["model"] == {"name": name}
    assert ("plan" in written) == models.load(name).reads_text


@pytest.mark.parametrize("name", models.names(models.Transformer))
def test_the_dimensions_of_a_transformer_are_all_that_it_needs(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    about = json.loads(said(["models", name, "--json"], capsys)[1])
    model = models.Transformer(name=name, **about["dimensions"])
    assert model == models.load(name)
    assert about["parameters"] == model.parameter_count
    assert about["source"] == models.source(name)


def test_a_short_sequence_is_shown_where_positions_are_few(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "seq_len = 512" in said(["models", "bert-base"], capsys)[1]


def test_an_unknown_model_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = said(["models", "lama2-7b"], capsys)
    assert (code, out) == (2, "")
    assert error.startswith("no model 'lama2-7b' in the zoo; did you mean 'llama2-7b'")


@pytest.mark.parametrize(
    ("count", "text"),
    [(999, "999"), (11_689_512, "11.7M"), (8_030_261_248, "8.03B"), (482 * 10**9, "482B"),
     (1_026 * 10**9, "1.03T")],
)  # fmt: skip
def test_counts_have_three_digits(count: int, text: str) -> None:
    assert format_count(count) == text
