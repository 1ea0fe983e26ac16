"""Inputs that are nearly valid, for each of twelve kinds: what a user may write, and slips of it.

An input is bytes, so that it can be kept as a file in `seeds`. It is a function of its kind and of
a `random.Random`. Hypothesis is not used: most inputs are a valid one with one to four changes, so
there is little to shrink; an input costs microseconds, where drawing nested values with Hypothesis
costs as much as the simulation; and number and seed name an input for good.
"""

import csv
import gzip
import io
import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from compiler_parts import split_header
from fuzz_values import (
    hostile,
    plausible,
    toml_text,
    toml_value,
)
from hlo import DATA, REAL
from hlo_mutations import COARSE, bodies, broken
from inputs import ALL_FIELDS, defaults

from tpusim.base.json_text import json_text
from tpusim.models import MODEL_KEYS
from tpusim.plan import PLAN_KEYS
from tpusim.report import document
from tpusim.runfile.read_run import run_of
from tpusim.simulation import simulate

TESTS = Path(__file__).parents[1]
Sections = dict[str, dict[str, Any]]

DENSE = {"layers": 2, "embed": 512, "mlp": 1024, "heads": 4, "vocab": 1000}
MOE = {"experts": 4, "experts_per_token": 2}
BASES: Sequence[Sections] = (
    {
        "slice": {"chip": "v5e", "topology": "2x2"},
        "model": DENSE,
        "plan": {"seq_len": 128, "global_batch": 8, "mesh": {"fsdp": 2, "tensor": 2}},
    },
    {
        "slice": {"name": "v6e-4"},
        "model": {**DENSE, **MOE},
        "plan": {"seq_len": 128, "global_batch": 8, "mesh": {"fsdp": 2, "expert": 2}},
    },
    {
        "slice": {"chip": "v4", "topology": "2x2x1"},
        "model": {**DENSE, "layers": 4, "kv_heads": 2, "head_dim": 64},
        "plan": {
            "seq_len": 128, "global_batch": 16, "microbatches": 4,
            "mesh": {"stage": 2, "fsdp": 2},
        },
    },
    {
        "slice": {"chip": "v5e", "topology": "2x2", "num_slices": 2},
        "model": {**DENSE, "kind": "encoder", "attention": "dot"},
        "plan": {"seq_len": 64, "global_batch": 16, "mesh": {"dcn_data": 2, "fsdp": 4}},
    },
    {
        "slice": {"chip": "v5p", "topology": "2x2x1"},
        "model": {**DENSE, "window": 64, "global_every": 2},
        "plan": {"seq_len": 256, "global_batch": 4, "mesh": {"context": 2, "data": 2}},
    },
)  # fmt: skip


def any_text(data: bytes, draw: random.Random) -> bytes:
    """A text with a slip of the keyboard, or of the disk."""
    return draw.choice(COARSE)(data, draw) if data else data


def _spelt(section: str, key: str, draw: random.Random) -> str:
    """One of the two spellings of a key."""
    table = {"plan": PLAN_KEYS, "model": MODEL_KEYS}.get(section)
    group, name = table.table.get(key, ("", key)) if table else ("", key)
    return f"{group}.{name}" if group and draw.random() < 0.3 else key


def _keys(section: str) -> list[str]:
    return [key for key in ALL_FIELDS[section] if key != "hf"]


def _changed(base: Mapping[str, Mapping[str, Any]], draw: random.Random) -> Sections:
    """A run with up to four documented keys of other values; one in five has a hostile one."""
    found = {name: dict(keys) for name, keys in base.items()}
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        often = "serving" if "serving" in found else "plan"
        section = draw.choice([*found, often, often])
        key = draw.choice(_keys(section))
        found[section][_spelt(section, key, draw)] = plausible(section, key, draw)
    if draw.random() < 0.2:
        section = draw.choice(list(found))
        key = draw.choice([*_keys(section), *found[section]])
        found[section][key] = hostile(draw)
    if draw.random() < 0.05:
        section = draw.choice(list(found))
        if found[section]:
            found[section].pop(draw.choice(list(found[section])))
    return found


def _written(run: Sections, draw: random.Random) -> bytes:
    text = toml_text(run).encode()
    return any_text(text, draw) if draw.random() < 0.15 else text


def run_file(draw: random.Random) -> bytes:
    return _written(_changed(draw.choice(BASES), draw), draw)


def sweep_file(draw: random.Random) -> bytes:
    """A sweep of a few plans of the base."""
    base = {name: dict(keys) for name, keys in draw.choice(BASES).items()}
    axes = [axis for axis in base["plan"].pop("mesh") if axis in ("fsdp", "tensor", "data")]
    base["sweep"] = {"axes": axes or ["fsdp"], "vary": {}}
    return _written(_changed(base, draw), draw)


SERVERS: Sequence[Sections] = (
    {
        "slice": {"chip": "v6e", "topology": "2x2"},
        "model": DENSE,
        "serving": {"mesh": {"tensor": 4}, "max_num_seqs": 8, "max_num_batched_tokens": 256},
        "traffic": {"rate": 50.0, "requests": 20, "prompt": 100, "output": 8},
        "failures": {"cold_start_s": 0.1, "ttft_s": 0.5},
    },
    {
        "slice": {"name": "v6e-4"},
        "model": {**DENSE, **MOE, "kv_heads": 2},
        "serving": {
            "mesh": {"attn_data": 2, "tensor": 2}, "engine": "sglang-jax", "replicas": 2,
            "max_num_seqs": 8,
        },
        "traffic": {
            "kind": "closed_loop", "users": 4, "requests": 20, "prompt": {"uniform": [10, 90]},
            "output": {"median": 4, "p99": 9},
        },
    },
)  # fmt: skip


def serving_file(draw: random.Random) -> bytes:
    """A server with a few keys of other values."""
    return _written(_changed(draw.choice(SERVERS), draw), draw)


def settings(draw: random.Random) -> bytes:
    """A list of one to three texts for `--set`."""
    texts = []
    for _ in range(draw.choice((1, 1, 2, 3))):
        section = draw.choice(("plan", "plan", "model", "slice"))
        key = draw.choice(_keys(section))
        value = plausible(section, key, draw) if draw.random() < 0.75 else hostile(draw)
        text = value if isinstance(value, str) and draw.random() < 0.5 else toml_value(value)
        texts.append(f"{section}.{_spelt(section, key, draw)}={text}")
    if draw.random() < 0.15:
        texts[0] = any_text(texts[0].encode(), draw).decode("utf-8", "replace")
    return json.dumps(texts).encode()


OBJECTS = ("None", "object()", "1j", "b'x'", "{1, 2}", "Path('x')", "range(3)", "int", "...", "ts")
"""Python values that no key takes."""


def python_call(draw: random.Random) -> bytes:
    """An expression of `ts` with a model, a plan and a slice, as someone writes in a notebook."""
    run = _changed(draw.choice(BASES), draw)
    wrong = draw.random() < 0.1 and (draw.choice(list(run)), draw.choice(OBJECTS))

    def arguments(section: str) -> str:
        given = {key: repr(value) for key, value in run[section].items() if "." not in key}
        if wrong and wrong[0] == section:
            given[draw.choice(_keys(section))] = wrong[1]
        first = [given.pop(key, "''") for key in ("chip", "topology")] if section == "slice" else []
        return ", ".join([*first, *(f"{key}={value}" for key, value in given.items())])

    named = "chip" not in run["slice"]
    pod = repr(run["slice"].get("name")) if named else f"ts.Slice({arguments('slice')})"
    model = f"ts.models.Transformer({arguments('model')})"
    call = f"ts.simulate({model}, ts.Plan({arguments('plan')}), {pod})"
    return call.replace("\x1b", "\\x1b").encode()


HF_FILES = sorted((TESTS / "unit/models/hf").glob("*.json"))


def hf_config(draw: random.Random) -> bytes:
    """A published `config.json` with other sizes, other words, or without a key."""
    config = json.loads(draw.choice(HF_FILES).read_text("utf-8"))
    config["num_hidden_layers" if "num_hidden_layers" in config else "n_layer"] = 2
    for _ in range(draw.choice((0, 1, 1, 2, 3))):
        key = draw.choice(list(config))
        change = draw.random()
        if change < 0.15:
            config.pop(key)
        elif change < 0.45 and isinstance(config[key], int):
            config[key] = draw.choice((config[key] // 2, config[key] * 2, *HF_SIZES))
        elif change < 0.7:
            other = json.loads(draw.choice(HF_FILES).read_text("utf-8"))
            name = draw.choice(list(other))
            config[name] = other[name]
        else:
            config[key] = hostile(draw, None)
    text = json.dumps(config, indent=1).encode()
    return any_text(text, draw) if draw.random() < 0.15 else text


HF_SIZES = (0, 1, 2, 3, 8, 64, 100)

SMALL_MAXTEXT = {
    "base_num_decoder_layers": 2, "base_emb_dim": 512, "base_mlp_dim": 1024,
    "base_num_query_heads": 4, "base_num_kv_heads": 4, "head_dim": 128, "vocab_size": 1000,
    "max_target_length": 128, "per_device_batch_size": 2,
}  # fmt: skip


def maxtext_config(draw: random.Random) -> bytes:
    """A YAML of MaxText's keys with a few of other values."""
    config: dict[str, Any] = dict(SMALL_MAXTEXT)
    known = defaults()
    for _ in range(draw.choice((0, 1, 2, 2, 4))):
        key = draw.choice(list(known))
        value, change = known[key], draw.random()
        if change < 0.2:
            config[key] = hostile(draw, None)
        elif isinstance(value, bool):
            config[key] = not value
        elif isinstance(value, int | float):
            config[key] = draw.choice((1, 2, 4, 64, 128, -1, 0, 0.5, value))
        else:
            config[key] = draw.choice((value, "full", "minimal", "none", "default", "bfloat16"))
    text = "".join(f"{key}: {json.dumps(each)}\n" for key, each in config.items()).encode()
    return any_text(text, draw) if draw.random() < 0.15 else text


COLUMNS = {
    "id": "a", "slice.chip": "v5e", "slice.topology": "2x2", "model.layers": 2,
    "model.embed": 512, "model.heads": 4, "model.mlp": 1024, "model.vocab": 1000,
    "plan.seq_len": 128, "plan.global_batch": 16, "plan.mesh.fsdp": 4, "measured.step_s": 0.01,
}  # fmt: skip
OPTIONAL: Mapping[str, Sequence[Any]] = {
    "model.kv_heads": (2, 4, 3), "model.experts": (4, 1), "model.experts_per_token": (2, 9),
    "model.kind": ("encoder", "decoder"), "model.head_dim": (64, "128/64"),
    "model.name": ("llama3.1-8b", "mine", "resnet-50"), "model.architecture": ("resnet", "x"),
    "plan.remat": ("none", "minimal", "custom"), "plan.save": ("['q', 'k']", "x", "[1]"),
    "plan.offload": ("['layer_in']",), "plan.matmul_dtype": ("bf16", "int8", "f32", "fp8"),
    "plan.optimizer": ("adam", "adafactor", "sgd"), "plan.mesh": ("{ fsdp = 4 }", "4"),
    "plan.mesh.tensor": (1, 2), "plan.vocab_tiles": (1, 4), "slice.num_slices": (1, 2),
    "measured.framework": ("maxtext", "jax", "lingvo"), "measured.mfu_pct": (40, 400),
    "measured.assumed": ("['plan.remat']", "plan.remat"), "measured.note": ("", "true", "a; b"),
    "measured.confidence": ("A", "D"), "measured.hbm_gib": (1e-9, 12.5), "wandb": ("x",),
}  # fmt: skip
CELLS = (
    *("", "-1", "0", "1e400", "nan", "inf", "1e290", "x", "=1+1", "1,5", '"', "\x1b[2J", "4x4x4"),
    *("{ a = 1 }", "[[1]]", "2026-08-04", "true", "999999999", "9" * 40, "é" * 300, "None"),
)


def measured_table(draw: random.Random) -> bytes:
    """A table of one to three measured runs."""
    extra = {key: draw.choice(OPTIONAL[key]) for key in draw.sample(list(OPTIONAL), 3)}
    rows = []
    for number in range(draw.choice((1, 1, 2, 3))):
        row: dict[str, Any] = {**COLUMNS, "id": f"run-{number}", **extra}
        for _ in range(draw.choice((0, 1, 1, 2))):
            key = draw.choice(list(row))
            row[key] = draw.choice(CELLS + tuple(OPTIONAL.get(key, ())))
        rows.append(row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    data = text.getvalue().encode()
    return any_text(data, draw) if draw.random() < 0.15 else data


PROGRAMS = ((REAL, "v5e:2x2"), (DATA / "decode_7x_2x2x1.hlo.gz", "7x:2x2x1"))
"""A training step, and what runs on SparseCores."""


def hlo_file(draw: random.Random) -> bytes:
    """A program of the compiler with changes of its text."""
    path, pod = draw.choice(PROGRAMS)
    plain = split_header(gzip.decompress(path.read_bytes()))[1].lstrip()
    head = f'// tpusim: {{"slice": "{pod}"}}\n'.encode()
    return head + broken(bodies(plain) if draw.random() < 0.75 else plain, draw)


FULL_HEADER = DATA / "pipeline_v6e_4x4.hlo.gz"
SMALL_HLO = (DATA / "by_hand/ring.hlo").read_bytes()


def changed_facts(facts: Any, draw: random.Random) -> None:
    """Put up to three hostile values into nested tables and lists, at any depth."""
    for _ in range(draw.choice((1, 1, 2, 3))):
        at: Any = facts
        key: Any = draw.choice(list(facts))
        while isinstance(at[key], dict | list) and at[key] and draw.random() < 0.6:
            at = at[key]
            key = draw.choice(list(at)) if isinstance(at, dict) else draw.randrange(len(at))
        at[key] = hostile(draw, None)


def hlo_header(draw: random.Random) -> bytes:
    """A small program after a header with other facts."""
    facts, _ = split_header(gzip.decompress(FULL_HEADER.read_bytes()))
    assert facts is not None
    facts |= {"slice": "v5e:2x2", "mesh": {"fsdp": 2, "tensor": 2}, "model_flops": 10**12}
    facts["devices"] = [[0, number % 2, number // 2, 0, 0] for number in range(4)]
    changed_facts(facts, draw)
    line = b"// tpusim: " + json.dumps(facts).encode()
    line = any_text(line, draw).replace(b"\n", b" ") if draw.random() < 0.15 else line
    return line + b"\n" + SMALL_HLO


@cache
def result_text() -> str:
    """The result file of a small run."""
    given = run_of(BASES[0], "the run", Path())
    return json_text(document(simulate(given.model, given.plan, given.pod)))


def result_file(draw: random.Random) -> bytes:
    """A result file with other values, without a key, or with a slip of the disk."""
    facts = json.loads(result_text())
    if draw.random() < 0.8:
        changed_facts(facts, draw)
    if draw.random() < 0.2:
        facts.pop(draw.choice(list(facts)))
    text = json.dumps(facts, indent=2).encode()
    return any_text(text, draw) if draw.random() < 0.15 else text


def rate_sample(draw: random.Random) -> bytes:
    """A sample of an input pipeline with cells of other values, and lines of any system."""
    rows: list[list[Any]] = [["stage", "threads", "records", "bytes", "seconds"]]
    for _ in range(draw.randint(1, 4)):
        stage = draw.choice(("read", "decompress", "batch", "decode"))
        rows.append([stage, *(draw.choice((1, 4, 2000, 1e9, 0.25)) for _ in range(4))])
    if draw.random() < 0.6:
        row = draw.choice(rows)
        row[draw.randrange(5)] = draw.choice((*CELLS, "1e-308", "5e-324", "1e308", "1e24"))
    end = draw.choice(("\n", "\r\n", "\r"))
    text = end.join(",".join(map(str, row)) for row in rows).encode()
    return any_text(text, draw) if draw.random() < 0.15 else text


KINDS: Mapping[str, Callable[[random.Random], bytes]] = {
    "run_file": run_file,
    "python": python_call,
    "hugging_face": hf_config,
    "maxtext": maxtext_config,
    "csv": measured_table,
    "hlo": hlo_file,
    "header": hlo_header,
    "set": settings,
    "sweep": sweep_file,
    "serving": serving_file,
    "result": result_file,
    "rates": rate_sample,
}
"""The twelve kinds of inputs."""


def inputs(kind: str, count: int) -> Sequence[bytes]:
    """The first inputs of a kind."""
    return [KINDS[kind](random.Random(f"{kind} {number}")) for number in range(count)]
