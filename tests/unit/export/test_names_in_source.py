"""Names in exported source: each is an identifier, a literal or text of the docstring."""

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import SMALL, said

import tpusim as ts
from tpusim.base.errors import PlanError
from tpusim.export import names
from tpusim.graph import Function, GraphWriter, Tensor
from tpusim.models import Architecture, GraphChoices, pieces

ROOM = Path(names.__file__).parent
BOUNDARY = "names.py"
"""The file that makes source of names."""
SPEAKING = ("unsaid", "PlanError")
"""Functions whose texts are messages and no source."""
INJECTED = 'm""";import os;os.system("touch P");"""'


def run(path: Path, source: str) -> None:
    """Run a file as `check` does."""
    exec(compile(source, str(path), "exec"), {"__name__": "step"})


def test_the_name_of_a_model_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optax")
    monkeypatch.chdir(tmp_path)
    named = f"[model]\nname = {json.dumps(INJECTED)}"
    text = SMALL.replace("[model]", named) + "mesh = { fsdp = 16 }\n"
    Path("run.toml").write_text(text)
    assert said(["export", "run.toml", "--out", "step.py"], capsys)[0] == 0
    source = Path("step.py").read_text()
    run(Path("step.py"), source)
    assert not Path("P").exists()
    assert INJECTED in str(ast.get_docstring(ast.parse(source)))


def test_the_name_of_a_hugging_face_config_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optax")
    monkeypatch.chdir(tmp_path)
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"intermediate_size": 256, "vocab_size": 512, "model_type": "llama"}
    config = {**sizes, **more, "_name_or_path": INJECTED}
    Path("config.json").write_text(json.dumps(config))
    model = ts.models.from_hf("config.json")
    plan = ts.Plan(mesh={"fsdp": 8}, seq_len=128, global_batch=8)
    run(Path("step.py"), ts.export_jax(model, plan, "v5e-8"))
    assert not Path("P").exists()


def test_the_name_of_an_axis_runs_nothing() -> None:
    axis = '":8}|exit()|{"'
    plan = ts.Plan(mesh={axis: 8}, rules={"embed": axis}, seq_len=128, global_batch=8)
    model = ts.models.load("llama3-8b", layers=2)
    source = ts.export_jax(model, plan, "v5e-8")
    assert f"MESH = {{{axis!r}: 8}}" in source
    assert f"P({axis!r}" in source


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("fsdp", '"fsdp"'),
        ("it's", '"it\'s"'),
        ('a"b', "'a\"b'"),
        ("a\"b'c", "'a\"b\\'c'"),
        ("a\\", '"a\\\\"'),
        ("a\nb", '"a\\nb"'),
        ("\ud800", '"\\ud800"'),
    ],
)
def test_a_literal_is_the_text(text: str, written: str) -> None:
    assert names.quoted(text) == written
    assert ast.literal_eval(written) == text


@pytest.mark.parametrize("text", ['"', '""', '"""', 'a"', '\\"', "\\", '\\"""', '"' * 7, "a\\N{x}"])
def test_a_docstring_is_the_text(text: str) -> None:
    assert ast.literal_eval(names.docstring(text)) == text


def test_no_value_stands_between_quotes_of_its_own() -> None:
    """In source, a value that is put between quotes would end them; `quoted` writes its own."""
    found = [where for where, node in texts_of_the_room() if quotes_a_value(node)]
    assert not found


def test_no_name_enters_source_as_it_is() -> None:
    """`op.name` and the like are read by names.py alone, or quoted."""
    found = [
        where
        for where, node in texts_of_the_room()
        for value in node.values
        if isinstance(value, ast.FormattedValue)
        if isinstance(value.value, ast.Attribute) and value.value.attr in ("name", "short")
        if ast.unparse(value.value) != "one.name"  # of a WeightSource, which is an identifier
    ]
    assert not found


def texts_of_the_room() -> Iterator[tuple[str, ast.JoinedStr]]:
    """The texts with values of the modules that write source, and where they stand."""
    for path in sorted(ROOM.glob("*.py")):
        if path.name != BOUNDARY:
            for node in formatted(ast.parse(path.read_text())):
                yield f"{path.name}:{node.lineno}: {ast.unparse(node)}", node


def formatted(tree: ast.AST) -> Iterator[ast.JoinedStr]:
    """The texts with values that are no messages."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in SPEAKING:
            continue
        if isinstance(node, ast.JoinedStr):
            yield node
        yield from formatted(node)


def quotes_a_value(text: ast.JoinedStr) -> bool:
    """Return True if a value of a text stands right after or before a quote of the text."""
    pairs = zip(text.values, text.values[1:], strict=False)
    return any(
        (isinstance(after, ast.FormattedValue) and literal(before)[-1:] in ("'", '"'))
        or (isinstance(before, ast.FormattedValue) and literal(after)[:1] in ("'", '"'))
        for before, after in pairs
    )


def literal(value: ast.expr) -> str:
    return str(value.value) if isinstance(value, ast.Constant) else ""


@dataclass(frozen=True, kw_only=True)
class Odd(Architecture):
    """A model with an element-wise function that the library lacks."""

    name: str = "odd"
    function: Function

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        w.size(embed=128, vocab=512)
        ids = w.input("ids", ("batch", "seq"))
        x, table = pieces.embedding(w, ids)
        x = w.pointwise("odd", (x,), ("batch", "seq", "embed"), 1.0, function=self.function)
        return pieces.language_model_loss(w, x, ids, table=table, form=choices.loss)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mish", "odd is the function mish, which tpusim cannot write as JAX yet"),
        ("f(x);import os;g", "the function f(x);import os;g has a name that is no identifier"),
        ("lambda", "the function lambda has a name that is no identifier"),
    ],
)
def test_a_function_that_the_library_lacks_is_refused(name: str, said: str) -> None:
    plan = ts.Plan(mesh={"fsdp": 8}, seq_len=128, global_batch=8)
    with pytest.raises(PlanError) as error:
        ts.export_jax(Odd(function=Function(name)), plan, "v5e-8")
    assert said in str(error.value)
