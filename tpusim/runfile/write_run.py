"""Write a run as a run file: the keys that are not their defaults."""

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpusim import models
from tpusim.base.checked_call import checked_call
from tpusim.base.errors import FileError, HardwareError, ModelError, blame
from tpusim.base.shown_value import shown
from tpusim.base.text_files import path_of, write_files
from tpusim.base.toml_text import toml_pairs
from tpusim.hardware import Slice, chip_names, load_chip
from tpusim.models import ARCHITECTURE_NAMES, ARCHITECTURES, Architecture, Transformer
from tpusim.plan import Input, Plan, ServingPlan
from tpusim.runfile.measured import Measured
from tpusim.runfile.read_run import run_of
from tpusim.runfile.read_serving import serving_of
from tpusim.runfile.schema import required
from tpusim.runfile.serving import (
    DEFAULT_ENGINE,
    SERVING,
    TRAFFIC,
    TrafficKeys,
    server_keys,
)
from tpusim.server.server_options import ServerOptions
from tpusim.simulation.arguments import check_arguments, check_model, check_slice

if TYPE_CHECKING:
    from tpusim.serving.engines import Engine


@checked_call
def write_run(
    path: str | Path,
    model: Architecture | str,
    plan: Plan | ServingPlan,
    pod: Slice | str,
    *,
    input: Input | None = None,
    measured: Measured | None = None,
    engine: "Engine | None" = None,
    traffic: TrafficKeys | None = None,
    options: ServerOptions | None = None,
) -> None:
    """Write a run as a TOML file, without the keys that have their defaults.

    `ts.read_run(path)` gives equal objects, and `ts.read_serving(path)` those of a server.

    model, pod: or their names, such as `llama2-7b` and `v5e-256`.
    path: of the file, which is replaced if there is one.
    input: the input pipeline of its hosts.
    measured: what a source reports of it.
    engine, traffic, options: of a server, whose `plan` is a `ServingPlan`.

    Raise a TpusimError for what no file can say (a model class or a chip of one's own, another
    model under the name of a published one), and FileError if the file cannot be written.
    """
    file = path_of(path, "write_run")
    if isinstance(plan, ServingPlan):
        text = _server_text(model, plan, pod, engine, traffic, options or ServerOptions())
        with blame(str(path)):
            write_files(file.parent, {file.name: text.encode()})
        return
    run = check_arguments(model, plan, pod, "write_run", "path, ")
    given: dict[str, Any] = dict(zip(("model", "plan", "slice"), run, strict=True))
    given |= {"input": input, "measured": measured}
    _check_types(given)
    text = run_text(given)
    with blame(str(path)):
        write_files(file.parent, {file.name: text.encode()})


def run_text(given: Mapping[str, Any]) -> str:
    """Return the text of a run file.

    given: the object of each section, None for a section that is left out.

    Raise as `write_run` does.
    """
    tables = {
        "slice": _slice_table(given["slice"]),
        "model": _model_table(given["model"]),
        "plan": _plan_table(given["plan"]),
        **{name: _changed(given[name]) for name in ("input", "measured") if given.get(name)},
    }
    text = "\n".join(_section(name, table) for name, table in tables.items())
    _check_read(text, given)
    return text


def _server_text(
    model: Architecture | str,
    plan: ServingPlan,
    pod: Slice | str,
    engine: "Engine | None",
    traffic: TrafficKeys | None,
    options: ServerOptions,
) -> str:
    """Return the text of the run file of a server. Raise as `write_run` does."""
    from tpusim.serving.engines import Engine

    order = "write write_run(path, model, plan, slice)"
    model, pod = check_model(model, order, "write_run"), check_slice(pod, order)
    chip = pod.chip.generation
    engine = engine or Engine.of(DEFAULT_ENGINE, chip=chip)
    tables = {
        "slice": _slice_table(pod),
        "model": _model_table(model),
        SERVING: server_keys(plan, engine, options, chip),
        **({} if traffic is None else {TRAFFIC: traffic.keys()}),
    }
    text = "\n".join(_section(name, table) for name, table in tables.items())
    found = serving_of(tomllib.loads(text), "the run", Path())
    given = {"slice": pod, "model": model, "plan": plan, "traffic": traffic, "options": options}
    read = (found.pod, found.model, found.plan, found.traffic, found.options)
    for (name, value), other in zip(given.items(), read, strict=True):
        if value != other:
            raise FileError(f"the {name} has values that a run file cannot hold: {value!r}")
    if replace(found.engine, facts={}) != replace(engine, facts={}):
        raise FileError(f"the engine has values that a run file cannot hold: {engine!r}")
    return text


def _check_types(given: Mapping[str, Any]) -> None:
    for name, kind in {"input": Input, "measured": Measured}.items():
        if given[name] is not None and not isinstance(given[name], kind):
            raise FileError(
                f"write_run is given {shown(given[name])} for the section [{name}]; write "
                f"{name}=ts.{kind.__name__}(...)"
            )


def _check_read(text: str, given: Mapping[str, Any]) -> None:
    """Raise FileError if the text does not read as the objects, which have no such form."""
    run = run_of(tomllib.loads(text), "the run", Path())
    read = {"slice": run.pod, "model": run.model, "plan": run.plan}
    for name, value in read.items():
        if value != given[name]:
            raise FileError(f"[{name}] has values that a run file cannot hold: {given[name]!r}")


def _slice_table(pod: Slice) -> dict[str, Any]:
    chip = pod.chip
    if chip.calibration is not None:
        raise HardwareError(
            "the slice is calibrated, and a run file names the file of a calibration; write the "
            'run of the slice without it, and add calibration = "mine.toml" under [slice]'
        )
    if chip.name in chip_names():
        known = load_chip(chip.name)
        known = known if pod.clock is None else known.at_clock(pod.clock)
    if chip.name not in chip_names() or chip != known:
        raise HardwareError(
            f"the chip {chip.name} is not the catalogue's, and a run file can only name those "
            f"({', '.join(chip_names())})"
        )
    keys = {
        "chip": chip.name,
        "topology": str(pod.topology),
        "num_slices": pod.num_slices if pod.num_slices > 1 else None,
        "dcn_oversubscription": pod.dcn_oversubscription if pod.dcn_oversubscription > 1 else None,
        "clock": None if pod.clock is None else f"{pod.clock!r} Hz",
        "slow": pod.slow.written or None,
        "broken": pod.broken.written or None,
    }
    return {key: value for key, value in keys.items() if value is not None}


def _model_table(model: Architecture) -> dict[str, Any]:
    """Return the keys of a model: its name alone where that is a published model's."""
    kind = ARCHITECTURE_NAMES.get(type(model))
    if kind is None:
        raise ModelError(
            f"{type(model).__name__} is no architecture of tpusim, and a run file can only hold "
            f"those ({', '.join(ARCHITECTURES)})"
        )
    if models.architecture_of(model.name) is not None:
        if models.load(model.name) != model:
            raise ModelError(
                f"the model is called {model.name}, which is a published one with other values; "
                'give it a name of its own, as in model.replace(name="mine")'
            )
        return {"name": model.name}
    if isinstance(model, Transformer):
        needed = {key: getattr(model, key) for key in required(Transformer)}
        if model.embed != model.heads * model.head_dim:
            needed["head_dim"] = model.head_dim
        return _unlike(model.flat(), Transformer(**needed).flat(), needed)
    return {"architecture": kind, **_changed(model)}


def _plan_table(plan: Plan) -> dict[str, Any]:
    needed = {key: getattr(plan, key) for key in ("mesh", "global_batch")}
    return _unlike(plan.flat(), Plan(**needed).flat(), needed)


def _unlike(
    keys: Mapping[str, Any], usual: Mapping[str, Any], needed: Mapping[str, Any]
) -> dict[str, Any]:
    return {key: each for key, each in keys.items() if key in needed or each != usual[key]}


def _changed(owner: Any, usual: Any = None) -> dict[str, Any]:
    """Return the fields of a dataclass that are not their defaults; groups as tables of theirs.

    usual: values in place of the defaults.
    """
    found = {}
    for field in fields(owner):
        value = getattr(owner, field.name)
        default = field.default
        if usual is not None:
            default = getattr(usual, field.name)
        elif field.default_factory is not MISSING:
            default = field.default_factory()
        if value != default:
            group = is_dataclass(value)
            known = default if group and type(default) is type(value) else None
            found[field.name] = _changed(value, known) if group else value
    return found


def _section(name: str, table: Mapping[str, Any]) -> str:
    return "\n".join([f"[{name}]", *toml_pairs(table), ""])
