"""Run files whose model is no transformer: by architecture, or by a published name."""

import json
from pathlib import Path

import pytest

import tpusim as ts
from tpusim.base import ModelError, PlanError, TpusimError
from tpusim.models import ARCHITECTURES, Conformer, EncoderDecoder, ResNet, names
from tpusim.runfile import read_run

HEAD = """
[slice]
chip = "v4"
topology = "2x2x2"

[plan]
global_batch = 64
mesh = { data = 8 }

[model]
"""


def written(folder: Path, model: str) -> Path:
    path = folder / "run.toml"
    path.write_text(f"{HEAD}{model}\n", encoding="utf-8")
    return path


def test_a_published_name_with_changes(tmp_path: Path) -> None:
    model = read_run(written(tmp_path, 'name = "resnet-50"\nimage = 192')).model
    assert model == ResNet.published("resnet-50", name="resnet-50 with image=192", image=192)


def test_an_architecture_with_its_fields(tmp_path: Path) -> None:
    model = read_run(written(tmp_path, 'architecture = "resnet"\nblocks = [1, 1, 1, 1]')).model
    assert model == ResNet(blocks=(1, 1, 1, 1))


def test_groups_are_tables(tmp_path: Path) -> None:
    moe = "moe = { experts = 8, experts_per_token = 2 }"
    model = read_run(written(tmp_path, f'name = "t5-base"\n{moe}')).model
    assert isinstance(model, EncoderDecoder)
    assert (model.moe.experts, model.moe.experts_per_token, model.expert_count) == (8, 2, 8)


def test_settings_reach_the_model(tmp_path: Path) -> None:
    path = written(tmp_path, 'name = "conformer-xl"')
    model = read_run(path, ["model.frames=800"]).model
    assert isinstance(model, Conformer)
    assert model.frames == 800


def test_every_published_model_is_found_by_its_name() -> None:
    for kind in ARCHITECTURES.values():
        for name in names(kind):
            assert type(ts.models.load(name)) is kind
    assert len(set(names())) == len(names())


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ('architecture = "resnets"', "model.architecture is 'resnets'; did you mean 'resnet'"),
        ('name = "resnet-50"\nimag = 3', "unknown key 'imag', as its architecture is resnet; did"),
        ('architecture = "resnet"\nblocks = 3', "blocks is 3; it must be a list of whole numbers"),
        ('architecture = "resnet"\nimage = "224"', "image is '224'; it must be a whole number or"),
        ('architecture = "resnet"\nwidth = 0', "width is 0; it must be at least 1"),
        ('name = "vit-b/16"\nimage = 225', "225 pixels, which patches of 16 do not divide; write"),
        ('name = "vit-b/16"\nheads = "4"', "heads is '4'; it must be a whole number"),
        ('architecture = "two-towers"', "model.image is missing; write it, or the name of a pub"),
        ('name = "t5-base"\nmoe = 3', "moe is 3; it must be of the class MoE"),
        ('name = "t5-base"\nmoe = { expert = 8 }', "model.moe has an unknown key 'expert'; did"),
        ('name = "siglip-b/16"\nfrozen = "img"', "frozen is 'img'; write one of image, text"),
        ('architecture = "metnet-2"\ndilations = [0]', "dilations is .0,.; it must be a list"),
        ('name = "resnet-5"', "no model 'resnet-5' in the zoo; of resnet there are resnet-101"),
    ],
)
def test_what_a_model_says_wrong(model: str, sentence: str, tmp_path: Path) -> None:
    path = written(tmp_path, model)
    with pytest.raises(ModelError, match=sentence) as caught:
        read_run(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "settings", "sentence"),
    [
        ('name = "t5-base"', [], "seq_len is missing, and t5-base reads text; write the tokens"),
        ('name = "resnet-50"', ["plan.mesh={stage=2,data=4}", "plan.microbatches=2"],
         "resnet-50 cannot be cut into stages: its layers are not one row"),
        ('name = "resnet-50"', ["plan.rules.act_heigt='data'"], "act_heigt names no dimension"),
    ],
)  # fmt: skip
def test_plans_that_a_model_does_not_admit(
    model: str, settings: list[str], sentence: str, tmp_path: Path
) -> None:
    run = read_run(written(tmp_path, model), settings)
    with pytest.raises((PlanError, TpusimError), match=sentence):
        ts.simulate(run.model, run.plan, run.pod)


def test_a_length_that_nothing_reads_is_noted(tmp_path: Path) -> None:
    run = read_run(written(tmp_path, 'name = "resnet-50"'), ["plan.seq_len=8"])
    result = ts.simulate(run.model, run.plan, run.pod)
    assert "plan.seq_len is not used, as resnet-50 reads no text" in str(result).replace("\n", " ")
    assert "examples/s" in str(result)


@pytest.mark.parametrize("name", ["t5-small", "siglip-b/16", "conformer-xl", "resnet-50"])
def test_models_of_all_kinds_are_documents(name: str) -> None:
    """Groups and towers are tables of `result.json`."""
    model = ts.models.load(name)
    seq_len = 64 if model.reads_text else 0
    plan = ts.Plan(mesh={"data": 8}, global_batch=8, seq_len=seq_len)
    facts = ts.simulate(model, plan, ts.Slice("v4", "2x2x2")).facts()
    assert json.loads(json.dumps(facts["model"]))["name"] == name


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ('architecture = "resnet"\nname = "vit-b/16"', "'vit-b/16', which is a vision-transformer"),
        ('architecture = ["resnet"]', "model.architecture is .'resnet'.; write text in quotes"),
        ('architecture = "resnet"\nimage = 0', "image is 0; write pixels, at least 1"),
        ('architecture = "metnet-2"\ntarget = 1536', "one, two or four times it for the target"),
    ],
)
def test_contradictions_of_a_model(model: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=sentence):
        read_run(written(tmp_path, model))


def test_a_table_changes_its_group(tmp_path: Path) -> None:
    path = written(tmp_path, 'name = "switch-base"\nmoe = { expert_every = 1 }')
    model = read_run(path).model
    assert isinstance(model, EncoderDecoder)
    assert (model.moe.experts, model.moe.expert_every) == (128, 1)
    path = written(tmp_path, 'name = "siglip-b/16"\nimage = { image = 256 }')
    assert read_run(path).model.flat()["image"]["image"] == 256


def test_a_transformer_may_be_called_so(tmp_path: Path) -> None:
    path = written(tmp_path, 'architecture = "transformer"\nname = "llama3-8b"')
    assert read_run(path).model == ts.models.load("llama3-8b")
