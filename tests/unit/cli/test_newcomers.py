"""Sixty mistakes of fifteen jobs, as somebody makes them who has read the README only."""

from collections.abc import Callable
from pathlib import Path

import pytest
from commands import LONGEST_SENTENCE, said

import tpusim as ts

SLICE = '[slice]\nname = "v5e-16"\n'
MODEL = '[model]\nname = "llama2-7b"\n'
PLAN = "[plan]\nseq_len = 1024\nglobal_batch = 32\n"
MESH = "mesh = { fsdp = 16 }\n"
CONFIG = """{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100,
"num_hidden_layers": 2, "num_attention_heads": 4}"""
FILES = {
    "run.toml": f"{SLICE}{MODEL}{PLAN}{MESH}",
    "train.toml": f"{SLICE}{MODEL}{PLAN}{MESH}[train]\ntokens = 1e10\n",
    "sweep.toml": f'{SLICE}{MODEL}{PLAN}[sweep]\naxes = ["fsdp"]\n',
    "search.toml": f'{MODEL}{PLAN}[search]\ngenerations = ["v5e"]\nchips = [16, 16]\n'
    'axes = ["fsdp"]\n',
    "config.json": CONFIG,
    "base.yml": "model_name: llama2-7b\n",
    "bare.toml": "global_batch = 3\n",
    "quoteless.toml": "[slice]\nname = v5e-256\n",
    "empty.toml": "",
    "planless.toml": f"{SLICE}{MODEL}",
    "textless.toml": f"{SLICE}{MODEL}[plan]\nglobal_batch = 32\n{MESH}",
}

MISTAKES = """
run run.toml                                     -> tpusim calls it 'simulate'
optimize run.toml                                -> tpusim calls it 'search'
simulte run.toml                                 -> did you mean 'simulate'?
version                                          -> write tpusim --version
explain matmul                                   -> valid are conv
simulate                                         -> give a run file, or --maxtext
simulate run                                     -> give the path of a run file in TOML
simulate .                                       -> a folder; give the path of a run file
simulate config.json                             -> hf = "config.json" under [model]
simulate base.yml                                -> is given as --maxtext
simulate bare.toml                               -> it belongs to [plan]
simulate quoteless.toml                          -> text in quotes, such as name = "v5e-256"
simulate empty.toml                              -> write the sections [slice], [model] and [plan]
simulate planless.toml                           -> write a section [plan] with global_batch
simulate textless.toml                           -> such as seq_len = 2048
simulate run.toml plan.remat=minimal             -> write --set plan.remat=minimal
simulate run.toml --set plan.remat minimal       -> write --set plan.remat=minimal
simulate run.toml --remat minimal                -> write --set plan.remat=VALUE
simulate run.toml --batch-size 4                 -> write --set plan.global_batch=VALUE
simulate run.toml --layers 4                     -> write --set model.layers=VALUE
simulate run.toml --output here                  -> tpusim calls it '--out'
simulate run.toml --slice v6e-16                 -> write --set slice.name=v6e-16
simulate run.toml --out run.toml                 -> is a file; give a folder
simulate run.toml --explain memory               -> valid are advice, collectives
simulate run.toml --set remat=minimal            -> it belongs to [plan]
simulate run.toml --set plan.mesh={fsdp=8}       -> write axes that multiply to 16
simulate run.toml --set plan.global_batch=20     -> write a multiple, such as 16 or 32
simulate run.toml --set plan.global_batch=2e1    -> write a whole number
simulate run.toml --set plan.seq_len=8k          -> write a whole number
simulate run.toml --set plan.vocab=3             -> it belongs to [model]
simulate run.toml --set plan.save=["attn"]       -> did you mean 'attn_norm'?
simulate run.toml --set plan.rules.mlp=tensr     -> no axis of the mesh: valid are fsdp
simulate run.toml --set plan.mesh.expert=2       -> or give the model experts
simulate run.toml --set slice.name=v5e-512       -> and num_slices = 2 of 16x16
simulate run.toml --set slice.num_slices=2       -> write one that does, such as dcn_data = 2
simulate run.toml --set slice.topology=4x4       -> write the name alone, or chip and topology
simulate run.toml --set model.heads=33           -> give head_dim
simulate run.toml --set model.hf=other.json      -> write one of them
simulate --maxtext llama2-7b                     -> or defaults for MaxText's own
simulate --maxtext defaults                      -> no slice is given
sweep run.toml                                   -> write a section [sweep] with axes
sweep sweep.toml --set sweep.axes=fsdp           -> write a list of axes, such as ["data"
sweep sweep.toml --set sweep.vary.remat=none     -> write a list of values to try
sweep sweep.toml --set sweep.vary.batch=[1]      -> did you mean 'global_batch'?
sweep sweep.toml --set sweep.vary.layers=[1]     -> varies keys of [plan], and 'layers' is none
sweep sweep.toml --jobs 4                        -> tpusim calls it '--workers'
simulate sweep.toml                              -> the section [sweep] is for the command sweep
search run.toml                                  -> write a section [search] with axes
search search.toml --set search.objective=mfu    -> tpusim calls it 'chip_time'
search search.toml --set search.objective=price  -> tpusim calls it 'cost'
search search.toml --set search.chips=16         -> write the least and the most chips
search search.toml --set search.chips=[16,8]     -> write the least first
search search.toml --set plan.mesh={fsdp=16}     -> a search chooses the mesh
train run.toml                                   -> write one with tokens
train train.toml --set train.checkpoints=1000    -> [train.checkpoints] with every = 1000
train train.toml --set train.epochs=3            -> write tokens, examples or steps
train train.toml --set train.steps=3             -> write one, such as tokens = 1e12
compare run.toml                                 -> or --set KEY=VALUE to compare a run file
scaling run.toml --chips 16-64                   -> write numbers such as 64,128,256
scaling run.toml --chips 100                     -> nearest are 8x8 (64 chips) and 8x16
advise run.toml --top 0                          -> from 1 up
chips v5                                         -> did you mean 'v5e' or 'v5p'?
models llama                                     -> `tpusim models` lists the
models llama2-7B                                 -> did you mean 'llama2-7b'?
validate run.toml                                -> write a section [measured] with step_s
replay run.toml                                  -> it does not begin with `HloModule`
replay run.toml --slice v5e                      -> write for example 'v5e-64'
export run.toml --out .                          -> give the name of a new file
explain conv --chip v5e --input 9,9 --kernel 3x3 -> write sizes such as 256x224x224x3
input-rate run.toml                              -> write a CSV file with the columns
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", MISTAKES.strip().splitlines())
@pytest.mark.usefixtures("folder")
def test_a_mistake_is_told_what_to_write(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, _, answer = (part.strip() for part in line.partition("->"))
    code, out, error = said(command.split(), capsys)
    assert (code, out) == (2, "")
    assert answer in error
    assert len(error) <= LONGEST_SENTENCE


@pytest.mark.parametrize(
    ("settings", "slice_"),
    [(["slice.chip=v6e", "slice.topology=4x4"], "v6e:4x4"), (["slice.name=v6e-16"], "v6e:4x4")],
)
@pytest.mark.parametrize("own", ['name = "v5e-16"', 'chip = "v5e"\ntopology = "4x4"'])
def test_a_setting_of_the_slice_takes_the_place_of_the_other_spelling(
    settings: list[str], slice_: str, own: str, folder: Path
) -> None:
    (folder / "own.toml").write_text(f"[slice]\n{own}\n{MODEL}{PLAN}{MESH}", "utf-8")
    assert str(ts.read_run("own.toml", settings).pod) == slice_


def plan(**keys: object) -> ts.Plan:
    return ts.Plan(**{"mesh": {"fsdp": 16}, "seq_len": 128, "global_batch": 16, **keys})  # type: ignore[arg-type]


def result() -> ts.Result:
    return ts.simulate("llama2-7b", plan(), "v5e-16")


CALLS: list[tuple[Callable[[], object], str]] = [
    (lambda: ts.simulate("run.toml"), "write ts.read_run(path) for a run file"),
    (lambda: ts.simulate(ts.read_run("run.toml")), "write simulate(run.model, run.plan, run.pod)"),
    (lambda: ts.simulate("llama2-7b", plan(), "v5e"), "it says the chip, v5e, but no size"),
    (lambda: ts.simulate("llama2-7b", "v5e-16", plan()), "with a plan of ts.Plan(...)"),
    (lambda: plan(batch_size=32), "tpusim calls it 'global_batch'"),
    (lambda: plan(per_device_batch_size=2), "write global_batch = per_device_batch_size x devices"),
    (lambda: plan(tp=2), "write it as an axis of the mesh, such as mesh = { tensor = 4 }"),
    (lambda: plan(dtype="bfloat16"), "tpusim calls it 'bf16'"),
    (lambda: setattr(plan(), "remat", "full"), "make another by replace(remat=...)"),
    (lambda: plan().global_batch_size, "tpusim calls it 'global_batch'"),
    (lambda: result().step_time, "did you mean 'step_time_s'?"),
    (lambda: result().time, "did you mean "),
    (lambda: result().memory, "did you mean 'memory_bytes'"),
    (lambda: result().plot(), "write ts.plot.breakdown(result)"),
    (lambda: result().report(), 'write ts.write_report(result, "report")'),
    (lambda: result().to_dict(), "write result.facts()"),
    (lambda: ts.plot.utilization(result()), "tpusim calls it 'utilisation'"),
    (lambda: ts.plot.roof(result()), "did you mean 'roofline'"),
    (lambda: ts.plot.report(result()), 'write ts.write_report(result, "report")'),
    (lambda: ts.Slice("v5e-16", "4x4"), "write it without a shape, or the chip 'v5e'"),
    (lambda: ts.Slice("v5e", 16), "or name the whole slice, as in Slice('v5e-256')"),
    (lambda: ts.Slice(chip="v5e", topology="4x4"), "tpusim calls it 'shape'"),
    (lambda: ts.Slice(name="v5e-16"), "write it first, as in Slice('v5e-256')"),
    (lambda: ts.Slice("v5e", "4x4", clock=1.2), "write a clock up to that with its unit"),
    (lambda: ts.read_run("run.toml", "plan.remat=full"), "write a list of settings, such as"),
    (lambda: ts.from_maxtext("defaults", model_name="x"), 'overrides={"model_name": "llama2-7b"}'),
    (lambda: ts.TrainingRun(epochs=1), "write tokens, examples or steps"),
    (lambda: ts.simulte, "did you mean 'simulate'?"),
    (lambda: ts.advise, "write result.advice()"),
]  # type: ignore[call-arg, arg-type, attr-defined]  # fmt: skip


@pytest.mark.parametrize(("call", "answer"), CALLS)
@pytest.mark.usefixtures("folder")
def test_a_mistake_in_python_is_told_what_to_write(call: Callable[[], object], answer: str) -> None:
    with pytest.raises((ts.TpusimError, AttributeError)) as raised:
        call()
    assert answer in str(raised.value)
    assert len(str(raised.value)) <= LONGEST_SENTENCE
