"""`ts.write_run`: what it writes reads as equal objects, and says no more than it must."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from extent import sample, seeds
from laws.test_any_plan import (
    Case,
    context_plan,
    expert_plan,
    latent_plan,
    plain_plan,
    plan_across_slices,
    quantised_plan,
    tiled_plan,
)

import tpusim as ts
from tpusim.base import HardwareError, ModelError, PlanError, TpusimError
from tpusim.graph import GraphWriter, Tensor
from tpusim.models import Architecture, GraphChoices

PLANS = (plain_plan, latent_plan, plan_across_slices, quantised_plan, tiled_plan, expert_plan,
         context_plan)  # fmt: skip
PLAN = ts.Plan(mesh={"data": 4}, global_batch=8, seq_len=128)
POD = ts.Slice("v4", "2x2x1")
MODEL = ts.models.Transformer(layers=2, embed=64, mlp=256, heads=4, vocab=512)
MEASURED = Path(__file__).parents[2] / "measured"


def read_back(path: Path, *run: object, **more: object) -> tuple[object, ...]:
    ts.write_run(path, *run, **more)  # type: ignore[arg-type]
    found = ts.read_run(path)
    return found.model, found.plan, found.pod


@pytest.mark.parametrize("seed", seeds(12))
@pytest.mark.parametrize("drawn", PLANS, ids=lambda drawn: drawn.__name__)
def test_a_random_run_reads_as_it_was_written(
    drawn: Callable[[int], Case], seed: int, tmp_path: Path
) -> None:
    try:
        run = drawn(seed)
    except TpusimError:
        pytest.skip("no such plan")
    assert read_back(tmp_path / "run.toml", *run) == run


@pytest.mark.parametrize("name", sample(ts.models.names(), 4))
def test_each_model_of_the_zoo_reads_as_it_was_written(name: str, tmp_path: Path) -> None:
    """By its name alone, and under another name by what is not its class's default."""
    path, model = tmp_path / "run.toml", ts.models.load(name)
    assert read_back(path, model, PLAN, POD) == (model, PLAN, POD)
    assert f'[model]\nname = "{name}"\n\n' in path.read_text("utf-8")
    own = replace(model, name="mine") if not hasattr(model, "KEYS") else model.replace(name="mine")
    assert read_back(path, own, PLAN, POD) == (own, PLAN, POD)


@pytest.mark.parametrize("path", sorted(MEASURED.rglob("*.toml"))[::7], ids=lambda path: path.stem)
def test_a_measured_run_reads_as_it_was_written(path: Path, tmp_path: Path) -> None:
    run, copy = ts.read_run(path), tmp_path / "copy.toml"
    ts.write_run(copy, run.model, run.plan, run.pod, measured=run.measured)
    found = ts.read_run(copy)
    assert (found.model, found.plan, found.pod) == (run.model, run.plan, run.pod)
    assert found.measured == run.measured


def test_a_file_has_no_defaults(tmp_path: Path) -> None:
    plan = PLAN.replace(remat="minimal", rules={"mlp": None, "embed": ["data"]})
    hosts = ts.Input(kind="jpeg", workers=8)
    ts.write_run(tmp_path / "in" / "run.toml", MODEL, plan, POD, input=hosts)
    assert (tmp_path / "in" / "run.toml").read_text("utf-8") == (
        '[slice]\nchip = "v4"\ntopology = "2x2x1"\n\n'
        "[model]\nlayers = 2\nembed = 64\nmlp = 256\nheads = 4\nvocab = 512\n\n"
        "[plan]\nmesh = { data = 4 }\nseq_len = 128\nglobal_batch = 8\n"
        'remat = "minimal"\nrules = { mlp = [], embed = ["data"] }\n\n'
        '[input]\nkind = "jpeg"\nworkers = 8\n'
    )
    assert ts.read_run(tmp_path / "in" / "run.toml").input == hosts


@pytest.mark.parametrize(
    "pod",
    [
        ts.Slice("v5e", "4x4", 4, dcn_oversubscription=2.5),
        ts.Slice("v4", "4x4x8_twisted"),
        ts.Slice("v6e", "4x4", clock="1.4 GHz"),
        ts.Slice("v4", "2x2x4", slow={"chips": [{"at": [0, 0, 1], "compute": 0.5}]}),
    ],
    ids=str,
)
def test_slices_of_all_kinds(pod: ts.Slice, tmp_path: Path) -> None:
    assert read_back(tmp_path / "run.toml", MODEL, PLAN, pod)[2] == pod


def test_texts_of_all_kinds(tmp_path: Path) -> None:
    note = 'a "quoted" \\ line\nand a tab\t, é, \x7f and \x00'
    measured = ts.Measured(step_s=0.5, note=note, assumed=["plan.remat"], hbm_gib=1e-7)
    path = tmp_path / "run.toml"
    ts.write_run(path, MODEL.replace(name='a "name"'), PLAN, POD, measured=measured)
    assert ts.read_run(path).measured == measured
    assert ts.read_run(path).model.name == 'a "name"'


@dataclass(frozen=True, kw_only=True)
class Mine(Architecture):
    name: str = "mine"

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        raise NotImplementedError


CHIP = ts.load_chip("v4").replace(hbm_bandwidth="5 TB/s")


@pytest.mark.parametrize(
    ("run", "error", "sentence"),
    [
        ((Mine(), PLAN, POD), ModelError, "Mine is no architecture of tpusim"),
        (
            (ts.models.load("llama3.1-8b").replace(layers=2), PLAN, POD), ModelError,
            "the model is called llama3.1-8b, which is a published one with other values",
        ),
        ((MODEL, PLAN, ts.Slice(CHIP, "2x2x1")), HardwareError, "v4 is not the catalogue's"),
        ((MODEL.replace(name="x" * 81), PLAN, POD), ModelError, "write 1 to 80 printable"),
        ((PLAN, MODEL, POD), PlanError, "write write_run(path, model, plan, slice)"),
    ],
)  # fmt: skip
def test_what_no_file_can_say_is_one_sentence(
    run: tuple[object, ...], error: type[TpusimError], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(error) as raised:
        ts.write_run(tmp_path / "run.toml", *run)  # type: ignore[arg-type]
    assert sentence in str(raised.value)
    assert list(tmp_path.iterdir()) == []
