"""Run files: what they give, and the one sentence for each way of getting one wrong."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from inputs import FIELDS, wanted

import tpusim as ts
from tpusim.base import FileError, HardwareError, ModelError, PlanError, TpusimError, UnitError
from tpusim.hardware import placement_from
from tpusim.runfile import read_run

PARTS = {
    "slice": 'chip = "v4"\ntopology = "4x4x4"',
    "model": 'name = "maxtext-22b"',
    "plan": "seq_len = 1024\nglobal_batch = 1024\nmesh = { fsdp = 64 }",
}


def written(folder: Path, **parts: str) -> Path:
    """A run file with some sections replaced ("" leaves one out)."""
    texts = {name: body for name, body in {**PARTS, **parts}.items() if body}
    path = folder / "run.toml"
    path.write_text("\n".join(f"[{name}]\n{body}\n" for name, body in texts.items()), "utf-8")
    return path


def test_a_run_is_what_its_file_says(tmp_path: Path) -> None:
    plan = 'remat = "minimal"\nsave = ["q"]\n[plan.rules]\nact_embed = ["fsdp"]\nmlp = []'
    run = read_run(written(tmp_path, plan=f"{PARTS['plan']}\n{plan}"))
    assert run.model == ts.models.load("maxtext-22b")
    assert run.pod == ts.Slice("v4", "4x4x4")
    assert run.plan == ts.Plan(
        mesh={"fsdp": 64}, seq_len=1024, global_batch=1024, remat="minimal", save=["q"],
        rules={"act_embed": ["fsdp"], "mlp": []},
    )  # fmt: skip


def test_a_slice_is_given_by_shape_or_by_name(tmp_path: Path) -> None:
    named = read_run(written(tmp_path, slice='name = "v4-1024"\nnum_slices = 2')).pod
    assert named == ts.Slice("v4", "8x8x8", 2)
    shaped = 'chip = "v5p"\ntopology = "4x4x8"\ntwisted = true'
    assert read_run(written(tmp_path, slice=shaped)).pod == ts.Slice("v5p", "4x4x8", 1, True)
    twisted = read_run(written(tmp_path, slice='name = "v4-256"\ntwisted = true')).pod
    assert twisted == ts.Slice("v4", "4x4x8", 1, True)
    spelled = 'chip = "v4"\ntopology = "4x4x8_twisted"'
    assert read_run(written(tmp_path, slice=spelled)).pod == twisted


def test_a_slice_says_how_thin_its_uplink_is(tmp_path: Path) -> None:
    named = 'name = "v4-128"\nnum_slices = 2\ndcn_oversubscription = 4'
    assert read_run(written(tmp_path, slice=named)).pod == ts.Slice("v4", "4x4x4", 2, False, 4.0)
    shaped = f"{PARTS['slice']}\nnum_slices = 2\ndcn_oversubscription = 1.5"
    assert read_run(written(tmp_path, slice=shaped)).pod.dcn_oversubscription == 1.5


def test_a_placement_is_written_in_parts_of_dimensions(tmp_path: Path) -> None:
    placed = '{ fsdp = ["x", "y", "z[:2]"], tensor = ["z[::2]"] }'
    settings = ["plan.mesh={ fsdp = 32, tensor = 2 }", f"plan.placement={placed}"]
    run = read_run(written(tmp_path), settings)
    way = placement_from(run.pod, run.plan.mesh, run.plan.placement)
    assert str(way) == "fsdp=32 on x,y,z[:2] · tensor=2 on z[::2]"
    alone = read_run(
        written(tmp_path), [settings[0], settings[1].replace('["z[::2]"]', '"z[::2]"')]
    )
    assert placement_from(alone.pod, alone.plan.mesh, alone.plan.placement) == way


def test_a_model_is_given_by_name_by_dimensions_or_by_what_differs(tmp_path: Path) -> None:
    own = "layers = 2\nembed = 64\nmlp = 256\nheads = 4\nvocab = 100"
    model = read_run(written(tmp_path, model=own)).model
    assert model == ts.models.Transformer(layers=2, embed=64, mlp=256, heads=4, vocab=100)
    shallow = read_run(written(tmp_path, model='name = "llama2-7b"\nheads = 64')).model
    assert (shallow.layers, shallow.heads, shallow.kv_heads, shallow.head_dim) == (32, 64, 64, 64)
    assert shallow.name == "llama2-7b with heads=64"


CONFIG = {
    "architectures": ["Gemma2ForCausalLM"], "vocab_size": 256000, "hidden_size": 3584,
    "intermediate_size": 14336, "num_hidden_layers": 42, "num_attention_heads": 16,
    "num_key_value_heads": 8,
}  # fmt: skip


def configured(folder: Path, model: str = "") -> Path:
    """A run file whose model is a Hugging Face config in a folder beside it."""
    (folder / "gemma-2-9b").mkdir()
    (folder / "gemma-2-9b" / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    return written(folder, model=f'hf = "gemma-2-9b/config.json"\n{model}')


def test_a_model_is_given_by_its_hugging_face_config(tmp_path: Path) -> None:
    run = read_run(configured(tmp_path))
    assert run.model == ts.models.from_hf(tmp_path / "gemma-2-9b")
    assert run.model.name == "gemma-2-9b"
    assert run.notes == ts.models.hf_notes(tmp_path / "gemma-2-9b")
    assert len(run.notes) == 1
    assert read_run(written(tmp_path)).notes == ()


def test_a_sweep_takes_a_config_too(tmp_path: Path) -> None:
    path = configured(tmp_path)
    path.write_text(f'{path.read_text("utf-8")}[sweep]\naxes = ["fsdp"]\n', "utf-8")
    assert read_run(path).model == ts.models.from_hf(tmp_path / "gemma-2-9b")


def test_a_config_too_is_changed_where_the_file_says_so(tmp_path: Path) -> None:
    path = configured(tmp_path, "layers = 4")
    shallow = read_run(path).model
    assert shallow == replace(read_run(path, ["model.layers=42"]).model, layers=4,
                              name="gemma-2-9b with layers=4")  # fmt: skip
    named = read_run(path, ["model.name=mine"]).model
    assert named == replace(shallow, name="mine")
    folder = read_run(path, ["model.hf=gemma-2-9b"]).model
    assert folder == shallow


T5 = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 512,
      "d_ff": 2048, "d_kv": 64, "num_heads": 8, "num_layers": 6, "vocab_size": 32128,
      "is_encoder_decoder": True}  # fmt: skip


def test_a_config_may_be_of_another_architecture(tmp_path: Path) -> None:
    path = configured(tmp_path)
    (tmp_path / "gemma-2-9b" / "config.json").write_text(json.dumps(T5), "utf-8")
    model = read_run(path).model
    assert model == replace(ts.models.load("t5-small"), name="gemma-2-9b")
    assert read_run(path, ["model.layers=4"]).model.layers == 4
    with pytest.raises(ModelError, match=r"model.qk_norm is no field of EncoderDecoder, which"):
        read_run(path, ["model.qk_norm=true"])


def test_names_of_other_libraries_are_answered_with_ours(tmp_path: Path) -> None:
    path = written(tmp_path, model=f"{PARTS['model']}\nhidden_size = 64")
    with pytest.raises(ModelError, match=r"unknown key 'hidden_size'; tpusim calls it 'embed'"):
        read_run(path)


@pytest.mark.parametrize("seconds", ["0.5", "2", "1e-3"])
def test_a_batch_is_made_in_seconds(seconds: str, tmp_path: Path) -> None:
    run = read_run(written(tmp_path, plan=f"{PARTS['plan']}\ninput_s = {seconds}"))
    assert run.plan.input_s == float(seconds)


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_run(path).plan.seq_len == 1024


SETTINGS = [
    ("plan.remat=minimal", lambda run: run.plan.remat.policy, "minimal"),
    ('plan.remat="minimal"', lambda run: run.plan.remat.policy, "minimal"),
    ("plan.seq_len=2048", lambda run: run.plan.seq_len, 2048),
    ("plan.seq_len = 2_048", lambda run: run.plan.seq_len, 2048),
    ('plan.save=["q", "k"]', lambda run: run.plan.remat.save, ("q", "k")),
    ("plan.mesh={ data = 64 }", lambda run: run.plan.mesh, {"data": 64}),
    ("plan.mesh.tensor=4", lambda run: run.plan.mesh, {"fsdp": 64, "tensor": 4}),
    ("plan.rules.act_seq=fsdp", lambda run: run.plan.rules, {"act_seq": "fsdp"}),
    ("slice.topology=4x4x8", lambda run: run.pod.chips, 128),
    ("model.layers=3", lambda run: run.model.layers, 3),
]


@pytest.mark.parametrize(("setting", "read", "value"), SETTINGS)
def test_a_setting_goes_over_the_file(setting, read, value, tmp_path: Path) -> None:
    assert read(read_run(written(tmp_path), [setting])) == value


def test_the_last_of_several_settings_holds(tmp_path: Path) -> None:
    settings = ["plan.seq_len=1", "plan.optimizer=sgd", "plan.seq_len=2"]
    plan = read_run(written(tmp_path), settings).plan
    assert (plan.seq_len, plan.optimizer.name) == (2, "sgd")


def test_what_a_published_model_has_may_be_left_out_of_it(tmp_path: Path) -> None:
    """0 is no window, and queries that are projected at once."""
    for model, key in (("mistral-7b", "window"), ("deepseek-v2", "q_rank")):
        path = written(tmp_path, model=f'name = "{model}"\n{key} = 0')
        assert getattr(ts.models.load(model), key) > 0 == getattr(read_run(path).model, key)


WHOLE = r"write a whole number from 1 to 1,000,000,000, without quotes$"
OR_NONE = WHOLE.replace("1", "0", 1)
P = PARTS["plan"]
BAD_CONTENT = [
    ({"slice": ""}, FileError, r"the section \[slice\] is missing; write a section \[slice\] with"),
    ({"model": ""}, FileError, r"the section \[model\] is missing"),
    ({"plan": ""}, FileError, r"the section \[plan\] is missing"),
    ({"plam": "x = 1"}, FileError, r"unknown section \[plam\]; did you mean 'plan'\?"),
    ({"plan": f"{P}\nseqlen = 3"}, PlanError,
     r"unknown key 'seqlen'; did you mean 'seq_len'\?"),
    ({"plan": f"{P}\ntwisted = true"}, PlanError, r"'twisted'; it belongs to \[slice\]"),
    ({"model": "post_norm = true"}, ModelError, r"'post_norm'; did you mean 'post_norms'"),
    ({"model": 'name = "deepseek-v3"\nq_rank = -1'}, ModelError,
     "q_rank is -1; write a whole number from 0 to 1,000,000,000, without quotes$"),
    ({"model": 'name = "deepseek-v3"\nkv_rank = 0'}, ModelError,
     "q_rank is for latent attention; give kv_rank, or leave it out"),
    ({"model": "qk_norm = 1"}, ModelError, r"write true or false, without quotes"),
    ({"model": "vocabulary = 9"}, ModelError, r"unknown key 'vocabulary'; did you mean 'vocab'\?"),
    ({"slice": 'ship = "v4"'}, HardwareError, r"unknown key 'ship'; did you mean 'chip'\?"),
    ({"plan": "seq_len = 8\nmesh = { fsdp = 64 }"}, PlanError,
     f"plan.global_batch is missing; {WHOLE}"),
    ({"plan": "seq_len = 8\nglobal_batch = 8"}, PlanError,
     r"plan.mesh is missing; write a table of axes and sizes"),
    ({"slice": 'topology = "4x4x4"'}, HardwareError, "slice.chip is missing"),
    ({"slice": 'chip = "v4"'}, HardwareError, "slice.topology is missing"),
    ({"model": "layers = 3"}, ModelError, f"model.embed is missing; {WHOLE[:-1]}, or the name of"),
    ({"plan": P.replace("1024", '"1024"')}, PlanError, f"seq_len is the text '1024'; {OR_NONE}"),
    ({"plan": P.replace("1024", "1024.0")}, PlanError, f"seq_len is 1024.0; {OR_NONE}"),
    ({"plan": P.replace("1024", "true")}, PlanError, f"seq_len is true; {OR_NONE}"),
    ({"plan": P.replace("1024", "-4")}, PlanError, f"seq_len is -4; {OR_NONE}"),
    ({"plan": P.replace("1024", "inf")}, PlanError, f"seq_len is inf; {OR_NONE}"),
    ({"plan": P.replace("1024", "nan")}, PlanError, f"seq_len is nan; {OR_NONE}"),
    ({"plan": P.replace("1024", "1000000001")}, PlanError, f"is 1000000001; {OR_NONE}"),
    ({"plan": P.replace("1024", "1" + "0" * 4000)}, PlanError, f"of 13288 bits; {OR_NONE}"),
    ({"plan": P.replace("64", "-64")}, PlanError, f"plan.mesh.fsdp is -64; {WHOLE}"),
    ({"plan": P.replace("{ fsdp = 64 }", "{}")}, PlanError, "plan.mesh is empty; write at least"),
    ({"plan": P.replace("{ fsdp = 64 }", "64")}, PlanError, "plan.mesh is 64; write a table of"),
    ({"plan": f"{P}\nsave = 'q'"}, PlanError, r"save is the text 'q'; write a list of names"),
    ({"plan": f"{P}\ncontext_exchange = {{ fsdp = 3 }}"}, PlanError,
     'plan.context_exchange.fsdp is 3; write "gather", "ring" or "all-to-all", or one for each'),
    ({"plan": f"{P}\ncontext_exchange = 3"}, PlanError,
     'plan.context_exchange is 3; write "gather", "ring" or "all-to-all", or one for each axis'),
    ({"plan": f"{P}\nplacement = {{ fsdp = ['x', 3] }}"}, PlanError,
     r"plan.placement.fsdp\[1\] is 3; write torus dimensions, or parts"),
    ({"plan": f"{P}\nrules = {{ mlp = 3 }}"}, PlanError, "plan.rules.mlp is 3; write an axis or"),
    ({"plan": f"{P}\nremat = 'ful'"}, PlanError, r"plan.remat is 'ful': did you mean 'full'\?"),
    ({"slice": 'chip = "v4"\ntopology = "4x4x5"'}, HardwareError, "v4 has no slice 4x4x5"),
    ({"slice": 'chip = "v4"\ntopology = "4x4 GiB"'}, HardwareError, "'4x4 GiB' is not a topology"),
    ({"slice": 'chip = "v44"\ntopology = "4x4x4"'}, HardwareError, "no chip 'v44' in the ca"),
    ({"slice": 'name = "v4-7"'}, HardwareError, "the number counts TensorCores"),
    ({"slice": 'name = "v4-128"\nchip = "v4"'}, HardwareError, "write the name alone, or chip and"),
    ({"slice": f"{PARTS['slice']}\nclock = 0.9"}, HardwareError,
     "slice.clock is 0.9; write a clock with its unit"),
    ({"slice": f"{PARTS['slice']}\nclock = '9'"}, UnitError,
     "clock: '9' has no unit; write for example '1.05 GHz'"),
    ({"slice": f"{PARTS['slice']}\nclock = '3 GHz'"}, HardwareError,
     "clock is '3 GHz', and the cores of v4 run at up to 1.05 GHz; write a clock up to that"),
    ({"slice": f"{PARTS['slice']}\ntwisted = 1"}, HardwareError, "twisted is 1; write true or"),
    ({"slice": f"{PARTS['slice']}\ndcn_oversubscription = '2'"}, HardwareError,
     "dcn_oversubscription is the text '2'; write a number, without quotes"),
    ({"slice": f"{PARTS['slice']}\ndcn_oversubscription = true"}, HardwareError, "true; write a"),
    ({"slice": f"{PARTS['slice']}\ndcn_oversubscription = 0.5"}, HardwareError, "is 0.5; write a"),
    ({"slice": f"{PARTS['slice']}\ndcn_oversubscription = inf"}, HardwareError, "is inf; write a"),
    ({"slice": f"{PARTS['slice']}\ndcn_oversubscription = 1{'0' * 400}"}, HardwareError, "; write"),
    ({"model": 'name = "maxtext-23b"'}, ModelError, "of maxtext there are maxtext-1024b"),
    ({"model": 'name = "maxtext-22b"\nkv_heads = 5'}, ModelError, "cannot share 5 K/V heads"),
    ({"model": 'name = "llama2-7b"\nhf = "config.json"'}, ModelError,
     "hf and the name of a model of the zoo, llama2-7b; write one of them"),
    ({"model": 'hf = "none.json"'}, FileError, "none.json: cannot be read: No such file"),
    ({"model": "hf = 3"}, ModelError, "model.hf is 3; write the path of a config.json, in quotes"),
    ({"model": 'name = "a\\nb"'}, ModelError, r"is the text 'a\\nb'; write 1 to 80 printable"),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "kind", "sentence"), BAD_CONTENT)
def test_what_a_file_says_wrong(
    parts: dict[str, str], kind: type[TpusimError], sentence: str, tmp_path: Path
) -> None:
    path = written(tmp_path, **parts)
    with pytest.raises(kind, match=sentence) as caught:
        read_run(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


BAD_FILES = [
    (b"", "the file is empty; write the sections"),
    (b" \n\t\n", "the file is empty"),
    (b"# nothing yet\n", r"the section \[slice\] is missing"),
    (b"\x89PNG\r\n\x1a\n", r"not a text file \(byte 0 is not UTF-8\)"),
    (b"a = 1\x00", "not valid TOML: .*line 1, column 6"),
    (b"[slice]\nchip = v4\n", "not valid TOML: .*line 2, column 8"),
    (b"[slice]\nchip = 'v4'\nchip = 'v4'\n", "not valid TOML: .*line 3"),
    (b"a = " + b"[" * 100_000, "too long to be read"),
    (b"a = " + b"9" * 5_000, "too long to be read"),
    (b"#" * 2**21, "2 MiB is too large for a run file, which has a few dozen lines"),
]


@pytest.mark.parametrize(("content", "sentence"), BAD_FILES)
def test_what_is_no_run_file(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(FileError, match=sentence):
        read_run(path)


def test_where_there_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot be read: No such file"):
        read_run(tmp_path / "none.toml")
    with pytest.raises(FileError, match="a folder; give the path of a run file in TOML"):
        read_run(tmp_path)
    with pytest.raises(FileError, match=r"cannot be read: .* too long"):
        read_run("x" * 5000)
    with pytest.raises(FileError, match="not a regular file"):
        read_run("/dev/null")
    with pytest.raises(FileError, match=r"^'a\\x00b': no path .*; give the path of a run file"):
        read_run("a\0b")


BAD_SETTINGS = [
    ("plan.remt=full", PlanError, r"--set plan.remt=full: .* did you mean 'remat'\?"),
    ("plna.remat=full", FileError, r"unknown section \[plna\]; did you mean 'plan'\?"),
    ("remat=full", FileError, r"remat is in no section; it belongs to \[plan\]"),
    ("plan.remat", FileError, "'plan.remat' is not a setting; write KEY=VALUE"),
    ("=full", FileError, "is not a setting"),
    ("plan..remat=full", FileError, "is not a setting"),
    ("plan.seq_len.x=1", FileError, "plan.seq_len.x cannot be set: plan.seq_len is 1024, not a"),
    ('plan.seq_len="8"', PlanError, "plan.seq_len is the text '8'"),
    ("plan.seq_len=8\nremat='none'", PlanError, "plan.seq_len is the text"),
    ("plan.seq_len=" + "9" * 5000, PlanError, r"plan.seq_len is the text '9{10,60}\.\.\.; write"),
    ("plan=3", PlanError, r"plan is 3; write a section \[plan\]"),
]


@pytest.mark.parametrize(("setting", "kind", "sentence"), BAD_SETTINGS)
def test_what_a_setting_says_wrong(
    setting: str, kind: type[TpusimError], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=sentence):
        read_run(written(tmp_path), [setting])


@pytest.mark.parametrize("path", [(s, key) for s, fields in FIELDS.items() for key in fields])
def test_every_key_says_what_to_write(path: tuple[str, str]) -> None:
    """A new field of `Plan` or `Transformer` is a key of the run file as soon as it exists."""
    assert len(wanted(path)) > 5


SPACE = """
[model]
name = "llama2-7b"
[plan]
seq_len = 128
global_batch = 32
"""


def test_a_file_with_a_sweep_is_a_run_and_its_space(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(f'[slice]\nname = "v5e-16"\n{SPACE}[sweep]\naxes = ["data", "fsdp"]\n')
    run = ts.read_run(path)
    assert run.search is None
    assert run.plan.mesh == {"data": 1, "fsdp": 1}
    assert run.sweep == ts.Space(base=run.plan, axes=["data", "fsdp"])
    assert len(ts.sweep(run.model, run.sweep, run.pod, workers=1)) == 5
    with pytest.raises(PlanError, match="but there are 16 devices of v5e:4x4"):
        ts.simulate(run.model, run.plan, run.pod)


def test_a_file_with_a_search_is_a_run_its_space_and_what_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "search.toml"
    asked = 'axes = ["fsdp"]\ngenerations = ["v5e"]\nchips = [16, 32]\nobjective = "cost"\n'
    path.write_text(f"{SPACE}[search]\n{asked}[train]\nsteps = 10\n")
    run = ts.read_run(path, ["search.top=2"])
    assert run.sweep is None
    assert run.train == ts.TrainingRun(steps=10)
    assert run.pod == ts.Slice("v5e-16")
    assert run.search is not None
    assert run.search.space == ts.PlanSpace(
        base=run.plan, slices=[ts.Slice("v5e-16"), ts.Slice("v5e-32")], axes=["fsdp"],
        model=run.model,
    )  # fmt: skip
    found = ts.search(run.model, run.search.space, **run.search.how, workers=1)
    assert found.objectives == ("cost",)
    assert len(found.best) == 2


def test_a_space_needs_no_mesh_in_python() -> None:
    base = ts.Plan(global_batch=32, seq_len=128)
    assert base.mesh == {"data": 1}
    space = ts.PlanSpace(base=base, slices=[ts.Slice("v5e-16")], axes=["data", "fsdp"])
    assert len(space) == len(ts.sweep("llama2-7b", ts.Space(base=base, axes=space.axes), "v5e-16"))


def test_a_file_is_swept_or_searched(tmp_path: Path) -> None:
    path = tmp_path / "both.toml"
    both = '[sweep]\naxes = ["fsdp"]\n[search]\naxes = ["fsdp"]\n'
    path.write_text(f'[slice]\nname = "v5e-16"\n{SPACE}{both}')
    with pytest.raises(PlanError, match=r"has \[sweep\] or \[search\]; leave one of them out"):
        ts.read_run(path)
