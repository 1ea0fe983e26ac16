"""Measured systems of many kinds: each row of both tables runs, and how far off it may be."""

import csv
import json
import runpy
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from tpusim.base.errors import PlanError
from tpusim.validation.systems import SystemsReport, validate_systems
from tpusim.validation.systems.system_models import model_of_row
from tpusim.validation.systems.system_rows import system_row
from tpusim.validation.systems.system_run import plan_of_row

FOLDER = Path(__file__).parents[2] / "experiments/systems"
TABLES = ("published_systems.csv", "vision_runs.csv")

BOUNDS = {
    ("lingvo", "mlperf11", "palm", "lamda", "pathways-3B", "ptxla", "shmap"): 0.11,
    ("gnmt",): 0.08,
    ("-sd-",): 0.15,
    ("vit",): 0.15,
    ("ssd",): 0.23,
    ("maskrcnn",): 0.44,
    ("resnet", "r50"): 0.25,
    ("transformer", "t5"): 0.25,
    ("gshard", "switch-switch"): 0.33,
    ("bert",): 0.16,
}
"""For words of the ids of a kind, the largest median of its absolute errors. Only to fall.

SSD and Mask R-CNN are two kinds: what is left out of the second, sorting and suppression of
thousands of boxes, the first does not do in training, and one median of both hid it.
"""


@cache
def report(name: str) -> SystemsReport:
    return validate_systems(FOLDER / name)


def errors() -> dict[str, float]:
    rows = (one for name in TABLES for one in report(name).outcomes)
    return {one.row.id: one.error for one in rows if one.error is not None}


@pytest.mark.parametrize("words", BOUNDS, ids=lambda words: words[0])
def test_errors_of_a_kind_are_within_their_bound(words: tuple[str, ...]) -> None:
    found = [error for name, error in errors().items() if any(word in name for word in words)]
    assert found
    assert median(map(abs, found)) <= BOUNDS[words]


def test_all_rows_together() -> None:
    found = [abs(error) for error in errors().values()]
    assert len(found) == 52
    assert median(found) <= 0.2
    assert sum(found) / len(found) <= 0.26


def test_every_row_that_gives_a_training_step_runs() -> None:
    outcomes = [one for name in TABLES for one in report(name).outcomes]
    assert [(one.row.id, one.reason) for one in outcomes if one.status == "failed"] == []


def test_the_files_have_a_row_for_each_system(tmp_path: Path) -> None:
    made = report("published_systems.csv")
    made.write(tmp_path / "out")
    rows = list(csv.DictReader((tmp_path / "out/systems.csv").open(encoding="utf-8")))
    assert [row["id"] for row in rows] == [one.row.id for one in made.outcomes]
    found = json.loads((tmp_path / "out/systems.json").read_text("utf-8"))
    assert (found["runs"], found["failed"]) == (24, 0)
    flagship = next(row for row in rows if row["id"] == "mlperf11-480B-v4-2048")
    ratio = float(flagship["predicted"]) / float(flagship["measured"])
    assert ratio - 1 == pytest.approx(float(flagship["error"]), abs=1e-5)


def test_pages_have_the_tables_of_today() -> None:
    names = runpy.run_path(str(FOLDER / "table.py"))
    tables = {"systems": "\n".join(names["lines"]())}
    tables["statistics"] = "\n".join(names["statistics"]())
    for page in (FOLDER / "README.md", FOLDER.parents[1] / "README.md"):
        text = page.read_text("utf-8")
        assert names["page_with"](text, tables, page) == text


def row(**cells: str) -> dict[str, str]:
    given = {"id": "x", "model": "ResNet-50", "task": "training", "chip": "v4", "num_chips": "8"}
    return given | {"parallelism": "data parallel", "global_batch": "1024"} | cells


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"model": "AlexNet"}, "'alexnet training' is no system that is known here"),
        ({"num_chips": "some"}, "num_chips is 'some'; write the number of chips of the run"),
        ({"num_chips": "7"}, "7 chips"),
        ({"parallelism": "by magic"}, "names no mesh that is known here"),
        ({"chip": "v9"}, "v9"),
    ],
)
def test_what_cannot_run_is_a_row_with_its_reason(
    cells: dict[str, str], reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "table.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, row(measured_step_s="0.1").keys())
        writer.writeheader()
        writer.writerow(row(measured_step_s="0.1", **cells))
        writer.writerow(row(measured_step_s="0.1"))
    bad, good = validate_systems(path).outcomes
    assert (bad.status, good.status) == ("failed", "simulated")
    assert reason in bad.reason
    assert "\n" not in bad.reason


@pytest.mark.parametrize(
    ("words", "kind", "name"),
    [
        ("ViT-L/16", "VisionTransformer", "vit-l/16"),
        ("MLP-Mixer-B/16", "MlpMixer", "mixer-b/16"),
        ("SigLIP B/16", "TwoTowers", "siglip-b/16"),
        ("CLIP ViT-L/14", "TwoTowers", "clip-l/14"),
        ("ViT-G/14", "VisionTransformer", "vit-G/14"),
        ("ViT-22B", "VisionTransformer", "vit-22b/14"),
        ("BigSSL 8B", "Conformer", "conformer-g"),
        ("MetNet-2", "MetNet2", "metnet-2"),
        ("T5-11B", "EncoderDecoder", "t5-11b"),
        ("Flux-dev 12B", "JointTransformer", "flux-dev"),
        ("Stable Diffusion 3", "JointTransformer", "stable-diffusion-3-medium"),
        ("Stable Diffusion v2-base", "DiffusionUNet", "stable-diffusion-v2-base"),
        ("Parti 20B", "EncoderDecoder", "parti-20b"),
        ("Parti-3B", "EncoderDecoder", "parti-3b"),
        ("GShard 600B", "EncoderDecoder", "gshard-m4-36l-2048e"),
        ("BERT-base", "Bert", "x"),
        ("Llama3-8B", "Transformer", "llama3-8b"),
        ("ResNet-101", "ResNet", "resnet-101"),
        ("3-D U-Net", "UNet3d", "unet3d"),
    ],
)
def test_a_model_is_known_by_its_words(words: str, kind: str, name: str) -> None:
    model = model_of_row(system_row(row(model=words))).model
    assert (type(model).__name__, model.name) == (kind, name)


@pytest.mark.parametrize(
    ("cells", "optimizer"),
    [
        ({}, "momentum"),
        ({"optimizer": "LARS"}, "lars"),
        ({"parallelism": "data parallel, LARS, distributed batch norm"}, "lars"),
        ({"optimizer": "SGD with momentum"}, "momentum"),
        ({"optimizer": "SGD"}, "sgd"),
        ({"optimizer": "AdamW"}, "adam"),
        ({"model": "Llama3-8B", "optimizer": "LAMB"}, "lamb"),
        ({"model": "Llama3-8B", "input": "512 tokens"}, "adam"),
        ({"model": "T5-11B"}, "adafactor"),
        ({"model": "T5-11B", "optimizer": "Adam"}, "adam"),
    ],
)
def test_a_row_names_its_optimizer_or_has_that_of_its_recipe(
    cells: dict[str, str], optimizer: str
) -> None:
    given = system_row(row(**cells))
    assert plan_of_row(given, model_of_row(given))[0].optimizer.name == optimizer


def test_a_capacity_that_no_row_gives_is_named_as_assumed() -> None:
    said = "the capacity factor is not given, and taken as 1"
    assert said in model_of_row(system_row(row(model="GShard 600B"))).notes
    noted = {one.row.id: said in one.reason for one in report("published_systems.csv").outcomes}
    assert noted["gshard-moe-128E-36L"]
    assert not noted["switch-switch-base-cf1.25"]


def test_parti_runs_as_two_circular_pipelines(tmp_path: Path) -> None:
    cells = row(model="Parti 20B", num_chips="1024", global_batch="8192", measured_step_s="8",
                parallelism="16-stage pipelining, 64-way data parallelism")  # fmt: skip
    (tmp_path / "table.csv").write_text(
        "\n".join([",".join(cells), ",".join(f'"{cell}"' for cell in cells.values())])
    )
    (outcome,) = validate_systems(tmp_path / "table.csv").outcomes
    assert outcome.result is not None
    told = outcome.result.pipeline
    assert told.startswith("circular, 16 stages x 5 parts, 16 microbatches: 30 of 110 trips")
    assert "as many microbatches as stages" in outcome.reason


@pytest.mark.parametrize(
    ("words", "axes"),
    [
        ("data parallel, weight-update sharding, LAMB", ("data",)),
        ("data parallel, wus, LARS", ("data",)),
        ("data parallel", ()),
    ],
)
def test_a_row_says_whether_updates_are_divided(words: str, axes: tuple[str, ...]) -> None:
    given = system_row(row(model="ResNet-50", parallelism=words))
    assert plan_of_row(given, model_of_row(given))[0].optimizer.axes == axes


def test_a_byte_order_mark_and_spare_cells_do_no_harm(tmp_path: Path) -> None:
    cells = row(measured_step_s="0.1")
    text = f"{','.join(cells)}\n{','.join(cells.values())},spare,cells\n"
    (tmp_path / "table.csv").write_text(text, encoding="utf-8-sig")
    (outcome,) = validate_systems(tmp_path / "table.csv").outcomes
    assert outcome.status == "simulated"


def test_a_table_of_other_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(
        PlanError, match=r"table\.csv: the table has the columns a, b; it needs id,"
    ):
        validate_systems(path)
