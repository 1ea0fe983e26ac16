"""Names are data: in every output they are one token of their own, whatever they contain."""

import ast
import csv
import gzip
import json
import re
from collections import Counter
from dataclasses import dataclass
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from extent import thorough
from hostile_names import LONGEST_AXIS, named
from reports import render_files

import tpusim as ts
from tpusim.base.errors import ModelError, PlanError
from tpusim.base.plain_text import visible_lines
from tpusim.export import export_jax
from tpusim.graph import Einsum, GraphWriter, Tensor
from tpusim.models import Architecture, GraphChoices, Transformer, pieces

POD = ts.Slice("v5e", "2x4")
PLAIN = ("model", "a", "b")
OWN = ("dim", "weight", "result", "layer")


def planned(name: str, first: str, second: str) -> tuple[Transformer, ts.Plan]:
    model = Transformer(name=name, layers=2, embed=128, mlp=256, heads=2, vocab=512)
    rules = {"batch": [first], "embed": [first], "mlp": [second], "act_mlp": [second]}
    mesh = {first: 4, second: 2}
    return model, ts.Plan(mesh=mesh, rules=rules, global_batch=8, seq_len=128, remat="minimal")


@dataclass(frozen=True, kw_only=True)
class Named(Architecture):
    """A model whose dimensions, weights, results and layers have names of their own."""

    name: str = "named"
    names: tuple[str, str, str, str] = OWN
    sizes: tuple[tuple[str, int], ...] = ()

    def forward(self, w: GraphWriter, choices: GraphChoices) -> Tensor:
        dim, weight, result, layer = self.names
        w.size(embed=128, vocab=512, **{**dict(self.sizes), dim: 256})

        def block(w: GraphWriter, x: Tensor) -> Tensor:
            wide = w.tensor(result, ("batch", "seq", dim))
            w.write(Einsum(f"{w.prefix}{weight}", x, w.weight(weight, "embed", dim), wide))
            return w.add("layer_out", x, w.dense("n_w", wide, "embed"))

        ids = w.input("ids", ("batch", "seq"))
        x, table = pieces.embedding(w, ids)
        x = w.layers(layer, 2, x, block)
        return pieces.language_model_loss(w, x, ids, table=table, form=choices.loss)


def statements(source: str) -> str:
    """The statements of a source, without the contents of its texts."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


def shape(source: str) -> str:
    """The statements of a source, without its texts and with its names by first appearance."""
    known: dict[str, str] = {}
    words = re.compile(r"(id|arg|name|attr)='(\w+)'")
    return words.sub(
        lambda m: f"{m[1]}='{known.setdefault(m[2], f'n{len(known)}')}'", statements(source)
    )


@pytest.fixture(scope="module")
def harmless() -> str:
    return export_jax(*planned(*PLAIN), POD)


@pytest.mark.parametrize("count", [20, thorough(1000)])
def test_names_add_no_statement_to_an_exported_step(count: int, harmless: str) -> None:
    expected = statements(harmless)
    for name, *axes in named(count, 2):
        source = export_jax(*planned(name, *axes), POD)
        assert statements(source) == expected, (name, axes)
        assert mesh_of(source) == axes
        assert visible_lines(source) == source


def mesh_of(source: str) -> list[str]:
    """The axes that an exported step names."""
    found = (node for node in ast.parse(source).body if isinstance(node, ast.Assign))
    (mesh,) = (node.value for node in found if ast.unparse(node.targets[0]) == "MESH")
    return list(ast.literal_eval(mesh))


@pytest.mark.parametrize("count", [20, thorough(1000)])
def test_names_of_an_architecture_add_no_statement(count: int) -> None:
    """Two that would be one identifier are refused."""
    plan = planned(*PLAIN)[1]
    expected = shape(export_jax(Named(), plan, POD))
    refused = 0
    for _, *names in named(count, 4):
        try:
            source = export_jax(Named(names=tuple(names)), plan, POD)
        except PlanError:  # two names that would be one, as below
            refused += 1
        else:
            assert shape(source) == expected, names
    assert refused <= count / 100


@pytest.mark.parametrize(
    ("names", "both"),
    [
        (("a-b", "w", "y", "l"), "dimensions 'a_b' and 'a-b' would both be A_B"),
        (("dim", "n:w", "y", "l"), "weights 'l/n:w' and 'l/n_w' would both be l_n_w"),
        (("dim", "w", "layer-out", "l"), "results 'l/layer-out' and 'l/layer_out' would both be"),
    ],
)
def test_two_names_that_would_be_one_are_refused(
    names: tuple[str, str, str, str], both: str
) -> None:
    with pytest.raises(PlanError, match=f"the {both}.* in JAX; rename one of them"):
        export_jax(Named(names=names, sizes=(("a_b", 2),)), planned(*PLAIN)[1], POD)


@pytest.mark.parametrize("count", [20, thorough(1000)])
def test_a_run_file_holds_any_name_that_it_may_have(count: int, tmp_path: Path) -> None:
    path, refused = tmp_path / "run.toml", []
    for name, *axes in named(count, 2):
        model, plan = planned(name, *axes)
        try:
            ts.write_run(path, model, plan, POD)
        except ModelError:
            refused.append(name)
        else:
            assert ts.read_run(path).model == model
            assert ts.read_run(path).plan == plan
    assert not [name for name in refused if name.isprintable() and len(name) <= LONGEST_AXIS]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("count", [thorough(200)])
def test_names_break_no_text_table_page_or_trace(count: int) -> None:
    expected = outputs(*PLAIN)
    for name, *axes in named(count, 2):
        found = outputs(name, *axes)
        for what, text in found.items():
            assert visible_lines(text) == text, (what, name, axes)
        assert tags(found["report.html"]) == tags(expected["report.html"]), (name, axes)
        for what in ("operations.csv", "transfers.csv", "lines.csv"):
            rows, plain = ([*csv.reader(StringIO(each[what]))] for each in (found, expected))
            assert [len(row) for row in rows] == [len(row) for row in plain], (what, name, axes)
            assert not [cell for row in rows for cell in row if cell[:1] in ("=", "@", "+")]
        json.loads(found["result.json"])
        events = json.loads(found["trace.json"])["traceEvents"]
        assert len(events) == len(json.loads(expected["trace.json"])["traceEvents"])


def outputs(name: str, *axes: str) -> dict[str, str]:
    """Each text of the outputs of a run with these names, drawings apart."""
    model, plan = planned(name, *axes)
    result = ts.simulate(model, plan, POD)
    files = dict(render_files(result, None))
    trace = gzip.decompress(files.pop("trace.json.gz"))
    texts = {n: each.decode() for n, each in files.items() if not n.endswith(("png", "svg"))}
    shown = (model, plan, result, model.graph(batch=8, seq_len=128))
    return {
        **texts,
        "trace.json": trace.decode(),
        **{f"str {number}": str(value) for number, value in enumerate(shown)},
        **{f"repr {number}": repr(value) for number, value in enumerate(shown[1:3])},
        **{f"html {number}": value._repr_html_() for number, value in enumerate(shown[:3])},
    }


def tags(page: str) -> Counter[str]:
    """How many there are of each element of a page."""
    found = Counter[str]()
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: found.update([tag, *(n for n, _ in attrs)])  # type: ignore[method-assign]
    parser.feed(page)
    return found
