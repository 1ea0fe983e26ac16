"""The experiment on serving: each row of a table is predicted from its columns alone."""

import csv
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from scripts import EXPERIMENTS, experiment

from tpusim.base.errors import FileError

HERE = EXPERIMENTS / "serving"

PALM = {
    **{"id": "palm", "family": "PaLM", "engine": "jax-pope", "chip": "v4", "chips": "64"},
    **{"devices": "64", "model": "PaLM 540B", "phase": "decode", "arrival": "static"},
    **{"ffn_layout": "weight_stationary_2d", "attn_layout": "batch", "batch": "64"},
    **{"in_len": "20", "out_len": "8", "time_s": "0.265", "time_kind": "decode_total"},
}
QWEN = {
    **{"id": "qwen", "family": "Qwen", "engine": "sglang-jax", "chip": "v6e", "chips": "1"},
    **{"devices": "1", "topology": "1x1", "model": "Qwen3-8B", "hf_id": "Qwen/Qwen3-8B"},
    **{"phase": "serve", "tp": "1", "w_dtype": "bf16", "kv_dtype": "bf16", "page_size": "128"},
    **{"arrival": "closed", "concurrency": "4", "num_requests": "8", "in_len": "256"},
    **{"out_len": "16", "itl_p50_s": "0.02", "output_tok_s": "150", "ttft_out1_p50_s": "0.1"},
}
IMAGES = {
    **{"id": "images", "family": "Images", "engine": "maxdiffusion", "chip": "v6e", "chips": "8"},
    **{"devices": "8", "topology": "2x4", "model": "Z-Image-Turbo", "phase": "diffusion"},
    **{"hf_id": "Tongyi-MAI/Z-Image-Turbo", "arrival": "static", "batch": "8", "time_s": "2"},
    **{"time_kind": "batch_total", "img_s": "4"},
}
UNKNOWN = {**QWEN, "id": "unknown", "hf_id": "nobody/none-1b", "model": "none"}


@pytest.fixture(scope="module")
def run() -> Any:
    sys.path.insert(0, str(HERE))
    try:
        yield experiment("serving")
    finally:
        sys.path.remove(str(HERE))


def table(path: Path, *rows: dict[str, str]) -> Path:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return path


def written(run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, *rows: dict[str, str]) -> Any:
    """Return the lines and the classes that a run of a table writes."""
    given = table(folder / "table.csv", *rows)
    monkeypatch.setattr(sys, "argv", ["run.py", str(given), "--out", str(folder / "out")])
    run.main()
    lines = list(csv.DictReader((folder / "out/serving.csv").read_text("utf-8").splitlines()))
    return lines, json.loads((folder / "out/serving.json").read_text("utf-8"))


def test_a_table_becomes_lines_and_classes(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, made = written(run, tmp_path, monkeypatch, PALM, QWEN, UNKNOWN)
    assert [(each["row"], each["metric"]) for each in lines[:3]] == [
        ("palm", "decode_total"),
        ("qwen", "itl_p50_s"),
        ("qwen", "ttft_out1_p50_s"),
    ]
    palm = lines[0]
    measured, predicted = float(palm["measured"]), float(palm["predicted"])
    assert measured == 0.265
    assert float(palm["error"]) == pytest.approx(predicted / measured - 1)
    assert abs(float(palm["error"])) < 0.25
    assert palm["assumed"] == "topology 4x4x4; weights bf16; cache bf16"
    assert all("no model 'none-1b'" in each["reason"] for each in lines if each["row"] == "unknown")
    classes = {(each["engine"], each["metric"]): each for each in made["classes"]}
    served = classes["sglang-jax", "output_tok_s"]
    assert (served["rows"], served["predicted"], list(served["failures"])) == (2, 1, ["unknown"])
    assert classes["jax-pope", "decode_total"]["median"] == abs(float(palm["error"]))
    assert "1 of 3 rows have a measurement without a prediction" in capsys.readouterr().out


def test_neither_the_name_nor_what_was_measured_changes_a_prediction(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {**QWEN, "id": "x", "family": "y", "itl_p50_s": "9", "output_tok_s": "1"}
    lines, _ = written(run, tmp_path, monkeypatch, QWEN, other)
    assert [each["predicted"] for each in lines[:3]] == [each["predicted"] for each in lines[3:]]


@pytest.mark.parametrize(
    "change",
    [
        {"concurrency": "8"},
        {"in_len": "2048"},
        {"chip": "7x", "topology": "1x1x1", "devices": "2", "tp": "2"},
        {"w_dtype": "int8"},
        {"hf_id": "Qwen/Qwen3-14B"},
    ],
)
def test_columns_change_a_prediction(run: Any, change: dict[str, str]) -> None:
    rows = [run.ServingRow({**QWEN, **each}) for each in ({}, change)]
    before, after = ([each.predicted for each in run.predicted_rows([row])] for row in rows)
    assert before != after


def test_families_count_once(run: Any) -> None:
    """Three rows of one family with an error of 10 % and one of another with 50 %: 30 %."""
    errors = [
        run.RowError(
            **{"row": str(at), "engine": "e", "phase": "p", "metric": "m", "family": family},
            measured=1.0,
            predicted=1.0 + error,
        )
        for at, (family, error) in enumerate([("a", 0.1)] * 3 + [("b", -0.5)])
    ]
    (found,) = run.by_class(errors)
    assert found["mean_by_family"] == pytest.approx(0.3)
    assert found["bias"] == pytest.approx(-0.2)
    assert (found["rows"], found["families"]) == (4, 2)
    assert found["median"] == pytest.approx(0.1)


def test_rows_that_state_too_little_are_not_judged(run: Any) -> None:
    (error,) = run.predicted_rows([run.ServingRow({**PALM, "gate": "0"})])
    assert not error.judged
    assert run.by_class([error]) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"arrival": "sometimes"}, "arrival is 'sometimes'; write closed, burst"),
        ({"concurrency": ""}, "arrival is closed, but no concurrency is stated"),
        ({"in_dist": "zipf"}, "in_dist is 'zipf', whose lengths are not known"),
        ({"in_len": "many"}, "in_len is 'many'; write a number"),
        ({"devices": "4"}, "devices is 4, but v6e:1x1 has 1"),
        ({"engine": "vlm"}, "no serving engine 'vlm' is known"),
        ({"phase": "diffusion"}, "phase is 'diffusion', but qwen3-8b is a model of text"),
        (
            {"hf_id": "Tongyi-MAI/Z-Image-Turbo"},
            "phase is 'serve', but z-image-turbo is a model of",
        ),
        ({"tp": "3"}, "write a tensor parallel size of 1"),
    ],
)
def test_a_row_that_cannot_be_simulated(run: Any, change: dict[str, str], reason: str) -> None:
    errors = run.predicted_rows([run.ServingRow({**QWEN, **change})])
    assert all(reason in each.reason for each in errors)


def image_seconds(run: Any, **change: str) -> float:
    """Return the predicted seconds of a batch of images."""
    errors = run.predicted_rows([run.ServingRow({**IMAGES, **change})])
    by_metric = {each.metric: each for each in errors}
    seconds = float(by_metric["batch_total"].predicted)
    batch = int(change.get("batch") or 8)
    assert by_metric["img_s"].predicted == pytest.approx(batch / seconds)
    return seconds


def test_images_are_their_steps_and_the_ends(run: Any) -> None:
    """A step more is a pass more, or two with guidance; texts and latents are passed once."""
    one, two, three = (image_seconds(run, steps=f"{steps}") for steps in (1, 2, 3))
    step = two - one
    assert three - two == pytest.approx(step)
    assert image_seconds(run) == pytest.approx(one + 8 * step)
    assert one - step > 0.3
    guided = [image_seconds(run, steps=f"{steps}", guidance="4") for steps in (1, 2)]
    assert guided[1] - guided[0] == pytest.approx(2 * step, rel=0.1)


@pytest.mark.parametrize(
    ("change", "least", "most"),
    [
        ({"resolution": "512"}, 0.25, 0.35),
        ({"text": "512"}, 1.02, 1.2),
        ({"ffn_layout": "fsdp"}, 1.2, 3),
        ({"chip": "v5e"}, 2, 5),
        ({"batch": "16"}, 1.8, 2.05),
    ],
)
def test_columns_change_the_seconds_of_a_batch(
    run: Any, change: dict[str, str], least: float, most: float
) -> None:
    assert least < image_seconds(run, **change) / image_seconds(run) < most


def test_what_a_row_of_images_does_not_state_is_said(run: Any) -> None:
    (first, _) = run.predicted_rows([run.ServingRow(IMAGES)])
    assert first.assumed == "weights bf16; steps 9; guidance 0; text 32"
    stated = {"w_dtype": "bf16", "steps": "9", "guidance": "0", "text": "32"}
    (second, _) = run.predicted_rows([run.ServingRow({**IMAGES, **stated})])
    assert (second.assumed, second.predicted) == ("", first.predicted)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tp": "8"}, "tp is for models of text"),
        ({"batch": "4"}, "batch is 4, which 8 devices do not divide"),
        ({"hf_id": "flux-dev"}, "no images of flux-dev are described; add flux-dev to images.toml"),
        ({"hf_id": "SDXL", "ffn_layout": "fsdp"}, "has no dimension embed"),
    ],
)
def test_images_that_cannot_be_simulated(run: Any, change: dict[str, str], reason: str) -> None:
    errors = run.predicted_rows([run.ServingRow({**IMAGES, **change})])
    assert all(reason in each.reason for each in errors)


def test_defaults_of_images_have_sources() -> None:
    table = tomllib.loads((HERE / "images.toml").read_text("utf-8"))
    for values in table.values():
        for each in values.values():
            assert each["kind"] in ("published", "derived")
            assert each["source"]


def test_a_table_without_a_column_is_refused(run: Any, tmp_path: Path) -> None:
    given = table(tmp_path / "table.csv", {"id": "a", "engine": "jax"})
    with pytest.raises(FileError, match="no column 'chip'"):
        run.read_table(given)


def test_the_rows_of_the_project_can_be_set_up(run: Any) -> None:
    setup = sys.modules["row_setup"].row_setup
    for row in run.read_table(HERE / "measured.csv"):
        setup(row)
        assert row.text("source")
