"""A config file: what it gives way to, what it inherits, and what is no config."""

from pathlib import Path

import pytest
from commands import run as command

import tpusim as ts
from tpusim.maxtext import from_maxtext

BASE = """
# a comment
run_name: ""
model_name: "default"
normalization_layer_epsilon: 1.e-05
checkpoint_period: 10_000
base_num_decoder_layers: 4
base_emb_dim: 512
base_num_query_heads: 4
base_num_kv_heads: 4
base_mlp_dim: 1_024
per_device_batch_size: 2.0
remat_policy: 'minimal'
mesh_axes: ['data', 'fsdp', 'tensor']
logical_axis_rules: [
    ['activation_batch', ['data', 'fsdp', 'fsdp_transpose']],
    ['activation_embed', 'tensor'],
    ['cache_kv', []],
  ]
compile_topology: 'v5e-16'
max_num_checkpoints_to_keep: None
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    file = tmp_path / "mine.yml"
    file.write_text(BASE, "utf-8")
    return file


def test_a_file_holds_over_the_defaults(base: Path) -> None:
    run = from_maxtext(base)
    assert (run.model.layers, run.model.embed, run.model.mlp, run.model.vocab) == (
        4,
        512,
        1024,
        32000,
    )
    assert (run.plan.remat.policy, run.plan.global_batch, run.plan.rules) == ("minimal", 32, {})
    assert str(run.pod) == "v5e:4x4"
    assert run.notes == (
        "ignored, as no step depends on them: run_name, normalization_layer_epsilon, "
        "checkpoint_period, mesh_axes, max_num_checkpoints_to_keep",
    )


def test_a_model_holds_over_the_file_and_overrides_over_both(base: Path) -> None:
    """As in MaxText's pyconfig."""
    run = from_maxtext(base, ["model_name=llama2-7b", "remat_policy=full"])
    assert run.model == ts.models.load("llama2-7b")
    assert run.plan.remat.policy == "full"
    assert any("sets base_num_decoder_layers, base_emb_dim" in note for note in run.notes)
    small = ["override_model_config=true", "base_num_decoder_layers=2"]
    assert from_maxtext(base, ["model_name=llama2-7b", *small]).model.layers == 2


def test_a_file_inherits(base: Path) -> None:
    child = base.with_name("child.yml")
    child.write_text("base_config: mine.yml\nbase_emb_dim: 1024\n", "utf-8")
    run = from_maxtext(child)
    assert (run.model.layers, run.model.embed) == (4, 1024)
    child.write_text("base_config: base.yml\nbase_emb_dim: 1024\n", "utf-8")
    assert from_maxtext(child, pod="v5e-16").model.layers == 16


def test_an_unknown_key_of_a_file_is_named_with_the_nearest(base: Path) -> None:
    base.write_text(BASE + "base_embd_dim: 3\nzzz: 1\n", "utf-8")
    assert from_maxtext(base).notes[1:] == (
        "ignored, as no key of MaxText is called so: base_embd_dim; did you mean 'base_emb_dim' "
        "or 'base_mlp_dim'?",
        "ignored, as no key of MaxText is called so: zzz",
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [1", "not valid YAML at line 1, column 6"),
        ("a: 1\na: 2\n", "'a' stands twice (line 2); remove one"),
        ("- a\n", "no table of keys; write lines such as base_emb_dim: 4096"),
        ("1: a\n", "no table of keys"),
        ("just words", "no table of keys"),
        ("a: !!python/object/apply:os.system ['true']", "not valid YAML"),
        ("a: &a [*a]\nbase_emb_dim: *a\n", "write a whole number"),
        ("a: 2024-13-45\n", "a value or a nesting cannot be read"),
        ("a: " + "[" * 3000, "a value or a nesting cannot be read"),
        ("base_emb_dim: " + "9" * 5000, "a value or a nesting cannot be read"),
        ("? [a, b]\n: 1\n", "found unhashable key"),
        ("base_config: mine.yml\n", "base_config is more than 8 configs deep"),
        ("base_config: [a]\n", "base_config is ['a']; write the path of a config"),
        (
            "base_config: other.yml\n",
            "base_config is 'other.yml', but there is no such file beside it",
        ),
        ("base_emb_dim: {a: 1}\n", "base_emb_dim is a table; write a whole number"),
        ("base_emb_dim: .nan\n", "base_emb_dim is nan; write a whole number"),
        ("base_emb_dim: 1e99\n", "base_emb_dim is '1e99'; write a whole number"),
        ("logical_axis_rules: {a: 1}\n", "logical_axis_rules is a table; write a list of rules"),
        ("\x00", "not valid YAML"),
    ],
)
def test_what_is_no_config_is_one_sentence(base: Path, text: str, sentence: str) -> None:
    base.write_text(text, "utf-8")
    with pytest.raises(ts.TpusimError) as found:
        from_maxtext(base, pod="v5e-16")
    assert sentence in str(found.value)
    assert "mine.yml" in str(found.value)
    assert "\n" not in str(found.value)


def test_paths_that_are_none(tmp_path: Path) -> None:
    binary, huge = tmp_path / "binary.yml", tmp_path / "huge.yml"
    binary.write_bytes(b"a: \xff")
    huge.write_bytes(b"#" * (2**20 + 1))
    for path, sentence in (
        (tmp_path / "base.yml", "cannot be read: No such file or directory; give the path of a"),
        (tmp_path, "a folder; give the path of a MaxText config"),
        (binary, "byte 3 is not UTF-8"),
        (huge, "1 MiB is too large for a MaxText config"),
        ("a\x00b", "no path"),
    ):
        with pytest.raises(ts.TpusimError) as found:
            from_maxtext(path)
        assert sentence in str(found.value)


def test_an_empty_file_is_the_defaults(base: Path) -> None:
    base.write_text("# nothing\n", "utf-8")
    assert from_maxtext(base, pod="v5e-16").plan == from_maxtext(None, pod="v5e-16").plan


@pytest.mark.usefixtures("undrawn")
def test_the_command(base: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = [
        "simulate",
        "--maxtext",
        str(base),
        "remat_policy=full",
        "steps=5",
        "--slice",
        "v5e:4x8",
    ]
    assert command([*arguments, "--out", str(tmp_path / "report")]) == 0
    out = capsys.readouterr().out
    assert "maxtext on v5e:4x8 (32 chips)" in out
    assert "remat full" in out
    assert "lowering xla (maxtext)" in out
    assert max(map(len, out.splitlines())) <= 100
    assert (tmp_path / "report" / "result.json").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--maxtext", "defaults"], "no slice is given"),
        (["--maxtext", "no.yml", "steps=1"], "no.yml: cannot be read"),
        (["run.toml", "--slice", "v5e-16"], "--slice and --verbose are for --maxtext"),
        (["run.toml", "steps=1"], "2 run files are given; write --set steps=1"),
        ([], "Missing argument 'RUN.toml'; give a run file, or --maxtext"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["simulate", *arguments]) == 2
    assert sentence in capsys.readouterr().err
