"""Writes the parts of the documents that follow from the code.

    python docs/tools/generate.py          # write
    python docs/tools/generate.py --check  # exit with 1 where a page is out of date

run_file.md: the keys of a run file, from the classes that it fills. compiler.md: the passes of the
lowering, and how compiled programs move what they move. models.md: the families of Hugging Face
configs. accuracy.md, user_guide.md: how far off plans are in HBM. accuracy.md: what ranges hold of
the runs that were published after theirs. README.md: what its Python prints.
"""

import inspect
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "plan_vs_compiler"))
sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "calibration"))

import cookbook
import coverage_by_time
import hbm_errors
import mechanisms
from docstring_entries import entries

from tpusim.lowering.pass_manager import all_passes
from tpusim.models import Transformer
from tpusim.models.hf.families import families, refused_types
from tpusim.plan import Input, Plan
from tpusim.runfile import Measured
from tpusim.runfile.schema import FIELDS
from tpusim.searches.request import SearchRequest
from tpusim.sweeps import Space

DOCS = Path(__file__).parents[1]
UNITS = {
    "seq_len": "tokens",
    "global_batch": "sequences per step",
    "mesh": "devices per axis",
    "input_s": "s",
    **dict.fromkeys(("record_bytes", "read_bytes"), "B"),
    **dict.fromkeys(("read_latency", "decode_s"), "s"),
    **dict.fromkeys(
        ("reader_bandwidth", "storage_bandwidth", "decompress_rate", "batch_rate"), "B/s"
    ),
    "shuffle": "records",
    "prefetch": "batches",
    "capacity_factor": "slots over the even share",
    "expert_group": "sequences",
    "expert_buffer": "rows over the mean",
    "dcn_oversubscription": "factor",
    "window": "tokens",
    "layers": "layers",
    "global_every": "layers",
    "positions": "tokens",
    "dense_layers": "layers",
    "expert_every": "layers",
    "stage_layers": "layers per part",
    **dict.fromkeys(
        ("embed", "mlp", "head_dim", "vocab", "q_rank", "kv_rank", "rope_dim", "v_head_dim",
         "expert_mlp", "shared_mlp"), "elements",
    ),
}  # fmt: skip
"""The units of the keys that have one."""

MEANINGS = {
    "chip": 'the generation, such as `"v5p"`; with `topology`',
    "topology": 'the torus of one slice, such as `"8x16x16"`, or `"4x4x8_twisted"`',
    "name": "the name of a slice, in place of `chip` and `topology`, such as `\"v4-4096\"`, with "
    "any name of the chip before the number: `v5litepod-256`, `trillium-256`, `ironwood-256`",
    "num_slices": "slices joined by DCN",
    "twisted": "the torus is twisted",
    "dcn_oversubscription": "how many times over the network cards of a slice's hosts could fill "
    "its uplink; at least 1",
    "clock": 'clock of the cores, such as `"1.9 GHz"`, where power holds them below the chip\'s '
    "own: matrix and vector units slow down with it, HBM and links do not",
    "slow": "chips, links and slices that are slower than the others: lists of tables, see below",
    "calibration": "the path of a file that `ts.calibrate` or the command wrote, relative to the "
    "run file: factors from your own measurements ([calibration.md](calibration.md))",
}  # fmt: skip
SLICE_DEFAULTS = {
    "num_slices": "1",
    "twisted": "false",
    "dcn_oversubscription": "1.0",
    "clock": "the chip's",
    "slow": "none",
    "calibration": "none",
}
MODEL_MEANINGS = {
    "name": "a model of the zoo, or a name of your own",
    "kind": "`decoder` or `encoder`",
    "layers": "transformer layers",
    "embed": "width of the residual stream",
    "mlp": "width of the MLP",
    "heads": "query heads",
    "head_dim": "width of a head; 0 for `embed / heads`",
    "vocab": "rows of the embedding table",
    "activation": "activation function of the MLP",
    "tied_embeddings": "the head is the transposed embedding table",
    "rotary": "queries and keys are rotated",
    "experts_per_token": "experts that the router gives each token",
    "rope_dim": "of latent attention: the part of `head_dim` that is rotated",
    "v_head_dim": "of latent attention: the width of the values; 0 for `head_dim`",
    "hf": "the path of a Hugging Face `config.json`, or of its folder; relative to the run file",
}
PLAN_MEANINGS = {
    "policy": "what the forward pass keeps: `full` (the input of each layer), `minimal` (also the "
    "outputs of matmuls with a weight), `dots` (the outputs of all matmuls) or `none` (everything "
    "that the backward pass reads)",
    "save": "tensors that are saved besides, such as `q` or `mlp_in`",
}
"""What keys mean that no docstring describes."""


class Key(NamedTuple):
    """A row of a table."""

    name: str
    kind: str
    default: str
    unit: str
    meaning: str


NEEDED_IN_FILES = ("mesh",)
"""Keys that Python may leave out, where a search chooses them."""

HF = Key("hf", "text", "", "", MODEL_MEANINGS.pop("hf"))


def keys_of(
    owner: type, meanings: Mapping[str, str], only: Collection[str] | None = None
) -> Iterator[Key]:
    """The fields of a dataclass as keys, but for those that are groups of keys.

    meanings: of the keys that the docstring does not describe. only: the fields to take.
    """
    hints = get_type_hints(owner)
    own = [
        field
        for field in fields(owner)
        if not is_dataclass(hints[field.name]) and (only is None or field.name in only)
    ]
    known = meanings | entries(owner.__doc__ or "", list(hints))
    for field in own:
        yield Key(
            field.name, kind_of(hints[field.name]), default_of(field),
            UNITS.get(field.name, ""), known.get(field.name, ""),
        )  # fmt: skip


def kind_of(hint: Any) -> str:
    """The type of a key in TOML's words."""
    hint = getattr(hint, "__supertype__", hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(kind_of(one) for one in inner if one is not NoneType))
    if origin is Literal:
        return " or ".join(dict.fromkeys(kind_of(type(value)) for value in inner))
    if origin is not None and issubclass(origin, Mapping):
        return "table"
    if origin is not None and issubclass(origin, Sequence):
        return "list"
    return {int: "integer", float: "number", str: "text", bool: "true or false"}[hint]


def default_of(field: "Field[Any]") -> str:
    """The default of a field as TOML would have it."""
    value = field.default if field.default_factory is MISSING else field.default_factory()
    if value is MISSING or field.name in NEEDED_IN_FILES:
        return "needed"
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, Mapping):
        return "`{}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`".replace("()", "[]")


def table(keys: Sequence[Key]) -> str:
    """The keys as a table of Markdown."""
    lines = ["| key | type | default | unit | meaning |", "| --- | --- | --- | --- | --- |"]
    for key in keys:
        if not key.meaning:
            raise SystemExit(f"no docstring says what {key.name} means; describe it there")
        meaning = key.meaning.removesuffix(".").replace("|", "\\|")
        lines.append(f"| `{key.name}` | {key.kind} | {key.default} | {key.unit} | {meaning} |")
    return "\n".join(lines) + "\n"


def tables() -> dict[str, dict[str, str]]:
    """The tables of each page, by the name of their markers."""
    return {
        "run_file.md": {
            "slice": table(list(_slice_keys())),
            "model": _grouped(Transformer, MODEL_MEANINGS, [HF]),
            "plan": _grouped(Plan, PLAN_MEANINGS),
            "input": table(list(keys_of(Input, {}))),
            "measured": table(list(keys_of(Measured, {}))),
            "sweep": table(list(keys_of(Space, {}, FIELDS["sweep"]))),
            "search": table(list(keys_of(SearchRequest, {}, FIELDS["search"]))),
        },
        "compiler.md": {"passes": _passes(), "mechanisms": mechanisms.markdown() + "\n"},
        "user_guide.md": {"hbm": hbm_errors.sentence()},
        "accuracy.md": {"hbm": hbm_errors.table(), "by-time": coverage_by_time.table()},
        "models.md": {"families": _families(), "refused": _refused()},
    }


def _families() -> str:
    lines = ["| family | `model_type` | read as | not modelled |", "| --- | --- | --- | --- |"]
    for family in families():
        asked = [f"{what} (`{key}`)" for key, what in family.left_out.items()]
        shown = ", ".join(f"`{name}`" for name in family.types)
        left = "; ".join([*family.always, *asked])
        lines.append(f"| {family.name} | {shown} | {family.kind} | {left} |")
    return "\n".join(lines) + "\n"


def _refused() -> str:
    lines = ["| `model_type` | missing | nearest family |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {what} | {near} |" for name, (what, near) in refused_types().items()]
    return "\n".join(lines) + "\n"


def _passes() -> str:
    lines = ["| pass | what it does | applies to | seen in |", "| --- | --- | --- | --- |"]
    for each in all_passes():
        name = f"`{each.name}`" + (" (observed)" if each.observed else "")
        shown = each.shown_by or "(the plan asks for it)"
        lines.append(f"| {name} | {each.does} | {each.when} | {shown} |")
    return "\n".join(lines) + "\n"


def _slice_keys() -> Iterator[Key]:
    for name, hint in FIELDS["slice"].items():
        default = SLICE_DEFAULTS.get(name)
        yield Key(
            name, kind_of(hint), f"`{default}`" if default else "", UNITS.get(name, ""),
            MEANINGS[name],
        )  # fmt: skip


def _grouped(owner: type, meanings: Mapping[str, str], more: Sequence[Key] = ()) -> str:
    """The keys of a class; those of each group under a heading, by both of their spellings."""
    keys = owner.KEYS
    homes = keys.own or (owner,)
    about: dict[str, str] = {}
    for home in (*homes, *keys.groups.values()):
        about |= entries(home.__doc__ or "", list(get_type_hints(home)))
    own = [key for home in homes for key in keys_of(home, meanings)]
    parts = [table([*own, *more])]
    for group, kind in keys.groups.items():
        rows = [
            key._replace(name=f"{name}` or `{group}.{key.name}", unit=UNITS.get(name, key.unit))
            for key in keys_of(kind, meanings)
            for name in (keys.flat_keys[group, key.name],)
        ]
        said = about.get(group) or inspect.cleandoc(kind.__doc__ or "").partition("\n")[0]
        parts.append(f"### {group}\n\n{said[:1].upper()}{said[1:]}\n\n{table(rows)}")
    return "\n".join(parts)


def in_page(page: str, found: Mapping[str, str]) -> str:
    """The page with the tables between their markers."""
    for name, lines in found.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}\n{lines}{end}{rest.split(end)[1]}"
    return page


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or say which of them are out of date."""
    stale = []
    pages = {name: partial(in_page, found=found) for name, found in tables().items()}
    for name, renewed in {"../README.md": cookbook.with_outputs, **pages}.items():
        old = (DOCS / name).read_text("utf-8")
        new = renewed(old)
        if new != old:
            stale.append(name)
            if arguments != ["--check"]:
                (DOCS / name).write_text(new, "utf-8")
    print(*stale, sep="\n", end="")
    return int(bool(stale) and arguments == ["--check"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
