"""The pages for users name what exists: Python names, commands, options, keys and files."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
import typer
from inputs import FIELDS, defaults
from reports import FIGURES, render_files

import tpusim as ts
from tpusim.base.foreign_names import our_names
from tpusim.cli.app import app
from tpusim.maxtext import from_maxtext
from tpusim.plan.default_rules import DEFAULT_RULES

pytestmark = pytest.mark.usefixtures("advised")

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "user_guide.md").read_text("utf-8")
COMING = (DOCS / "coming_from.md").read_text("utf-8")
SPANS = re.findall(r"(?<!`)`([^`\n]+)`", re.sub(r"^```.*?^```$", "", GUIDE, flags=re.S | re.M))


@cache
def options() -> Mapping[str, set[str]]:
    """The options of each command, by its words; those of all commands under an empty name."""
    found: dict[str, set[str]] = {"": {"--install-completion", "--version"}}

    def walk(command: object, words: str) -> None:
        for each in getattr(command, "params", ()):
            found.setdefault(words, {"-h", "--help"}).update(each.opts, each.secondary_opts)
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, f"{words} {name}".strip())

    walk(typer.main.get_command(app), "")
    return found


def test_python_names_of_the_guide_exist() -> None:
    named = set(re.findall(r"\bts\.([a-zA-Z_][\w.]*\w)", GUIDE))
    assert len(named) > 20
    for name in named:
        value: object = ts
        for part in name.split("."):
            assert hasattr(value, part), f"ts.{name}"
            value = getattr(value, part)


def test_attributes_of_results_in_the_guide_exist() -> None:
    run = ts.read_run("experiments/bert_480b/run.toml")
    result = ts.simulate(run.model, run.plan, run.pod)
    for text in (GUIDE, COMING):
        named = set(re.findall(r"`result\.(?!json)(\w+)", text))
        assert len(named) >= 3
        assert [name for name in named if not hasattr(result, name)] == []


def test_commands_and_options_of_the_guide_exist() -> None:
    lines = [
        line
        for block in re.findall(r"^```(?:sh|text)\n(.*?)^```$", GUIDE, re.S | re.M)
        for line in block.splitlines()
    ]
    commands = [text for text in [*lines, *SPANS] if re.match(r"tpusim [a-z]", text)]
    assert len(commands) > 15
    for command in commands:
        words = command.split(" | ")[0].split()[1:]
        name = " ".join(words[:2]) if " ".join(words[:2]) in options() else words[0]
        assert name in options(), command
        asked = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert asked <= options()[name], command


def test_options_that_the_guide_gives_by_themselves_exist() -> None:
    known = set().union(*options().values())
    alone = {span.split()[0] for span in SPANS if re.match(r"--[a-z]", span)}
    assert len(alone) > 15
    assert alone <= known


def test_keys_that_the_guide_sets_exist() -> None:
    known = {key for keys in FIELDS.values() for key in keys} | set(DEFAULT_RULES)
    spans = (re.match(r"([a-z_.]+) = ", span) for span in SPANS)
    keys = {each[1] for each in spans if each} - {"run"}
    paths = set(re.findall(r"--set '?(\w+)\.([\w.]+)=", GUIDE))
    assert len(keys) > 15
    assert keys <= known
    assert {key for section, key in paths if key not in FIELDS[section]} == set()


@pytest.mark.usefixtures("undrawn")
def test_the_guide_lists_the_files_of_a_report() -> None:
    section = GUIDE.split("## What is in the report?")[1]
    listed = set(re.findall(r"^\| `([\w.*]+)` \| ", section, re.M))
    plan = ts.Plan(mesh={"fsdp": 4}, seq_len=128, global_batch=8)
    model = ts.models.Transformer(layers=1, embed=256, mlp=512, heads=2, vocab=500)
    files = render_files(ts.simulate(model, plan, ts.Slice("v5e", "2x2")), None)
    drawn = {f"{name}.*" for name in FIGURES}
    others = {name for name in files if f"{name.split('.')[0]}.*" not in drawn}
    assert listed == drawn | others


LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_of_a_page_lead_to_files(page: Path) -> None:
    gone = [to for to in LINK.findall(page.read_text("utf-8")) if not (DOCS / to).exists()]
    assert gone == []


def rows(section: str) -> Iterator[tuple[list[str], list[str], str]]:
    """Their names, the keys here, and the remark of each row of a table."""
    (text,) = [part for part in COMING.split("\n## ") if part.startswith(f"{section}\n")]
    for line in text.splitlines():
        if line.startswith("| `") or (section == "xprof" and re.match(r"\| \w.*`", line)):
            theirs, ours, remark = line.strip("|").split(" | ")[:3]
            yield re.findall(r"`([^`]+)`", theirs), re.findall(r"`([^`]+)`", ours), remark


@pytest.mark.parametrize("section", ["MaxText", "Levanter", "Keras"])
def test_keys_beside_other_names_exist(section: str) -> None:
    found = list(rows(section))
    assert len(found) > 5
    for _, keys, _ in found:
        assert keys
        for key in keys:
            part, _, name = key.partition(".")
            known = ts.TrainingRun.__dataclass_fields__ if part == "train" else FIELDS[part]
            assert name in known, key


@pytest.mark.parametrize("section", ["MaxText", "Levanter", "Keras"])
def test_other_names_are_told_the_same_key(section: str) -> None:
    """A name that messages explain has the same key on the page."""
    told = {"dimensions": "model", "plans": "plan", "slices": "slice"}
    for theirs, keys, _ in rows(section):
        for name in (each.rpartition(".")[2] for each in theirs):
            ours = {
                f"{part}.{key}"
                for table, part in told.items()
                if (key := our_names(table).get(name)) is not None
            }
            assert not ours or ours & set(keys), f"{name} is {ours}, not {keys}"


def test_names_of_maxtext_are_read() -> None:
    names = {name for theirs, _, _ in rows("MaxText") for name in theirs}
    assert len(names) > 20
    assert names <= set(defaults()) | {"logical_axis_rules"}


MAXTEXT = {
    "ici_tensor_parallelism": (4, lambda plan: plan.mesh["tensor"] == 4),
    "per_device_batch_size": (3, lambda plan: plan.global_batch == 3 * 16),
    "gradient_accumulation_steps": (2, lambda plan: plan.microbatches == 2),
    "max_target_length": (512, lambda plan: plan.seq_len == 512),
    "remat_policy": ("minimal", lambda plan: plan.remat.policy == "minimal"),
    "weight_dtype": ("bfloat16", lambda plan: plan.param_dtype == "bf16"),
    "mu_dtype": ("bfloat16", lambda plan: plan.moment_dtype == "bf16"),
    "quantization": ("int8", lambda plan: plan.matmul_dtype == "int8"),
    "opt_type": ("adamw", lambda plan: plan.optimizer.name == "adam"),
    "optimizer_memory_host_offload": (True, lambda plan: plan.offload_optimizer),
    "sa_block_q": (256, lambda plan: plan.attention_block[0] == 256),
}


@pytest.mark.parametrize("key", MAXTEXT)
def test_a_key_of_maxtext_becomes_the_key_beside_it(key: str) -> None:
    value, holds = MAXTEXT[key]
    run = from_maxtext(None, {key: value}, pod=ts.Slice("v6e", "4x4"))
    assert holds(run.plan)
    assert any(key in theirs for theirs, _, _ in rows("MaxText"))


def test_outputs_beside_the_tools_of_xprof_exist() -> None:
    listed = set(re.findall(r"^\| `([\w.*]+)` \| ", GUIDE, re.M))
    found = [name for _, names, _ in rows("xprof") for name in names]
    files = {name for name in found if not name.startswith("result.")}
    assert len(files) > 4
    assert {re.sub(r"\.png$", ".*", name) for name in files} <= listed
