"""Run files read into the frozen data that a simulation takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import BaseModel, ValidationError

from tpusim import models
from tpusim.base.checked_call import checked_call
from tpusim.base.errors import FileError, HardwareError, ModelError, PlanError, blame, nearest
from tpusim.base.shown_value import cut, shown
from tpusim.base.text_files import path_of
from tpusim.base.toml_text import toml
from tpusim.base.value_checks import is_list
from tpusim.hardware import Slice, read_calibration
from tpusim.models import MODEL_KEYS, Architecture, Transformer
from tpusim.plan import PLAN_KEYS, Input, Plan
from tpusim.runfile.architectures import split_model
from tpusim.runfile.blame import fault_of
from tpusim.runfile.file_models import (
    measured_file,
    plan_file,
    run_file,
    search_file,
    sweep_file,
)
from tpusim.runfile.measured import Measured, open_keys
from tpusim.runfile.schema import required, wanted
from tpusim.runfile.serving import SERVING
from tpusim.runfile.toml_tables import override, read_toml
from tpusim.runfile.training import split_train

if TYPE_CHECKING:
    from tpusim.searches.request import AskedSearch
    from tpusim.sweeps import Space
    from tpusim.training import TrainingRun

LONGEST_NAME = 80
_SHAPED = ("chip", "topology")
SPACES = ("sweep", "search")
"""The sections that say what to choose from."""

FILES = {"": run_file, "sweep": sweep_file, "search": search_file}
"""The pydantic models of files, by the section that they choose from."""

_OF_THE_STEP = ("slice", "model", "plan", "input")
"""The sections that say what runs in a step."""


@dataclass(frozen=True, slots=True)
class SimulationRun:
    """What a run file says.

    where: the words that name its file in messages.
    model, plan, pod: the arguments of the simulation. Where a sweep or a search chooses the mesh,
        the plan has its axes with size 1; where a search chooses the slice, `pod` is the first.
    notes: features of the model's `config.json` that are not modelled.
    train: the training run of its section [train]; None without one.
    input: the input pipeline, if the file has one.
    measured: the measurement of its section [measured]; None without one.
    plausible: the other runs that it may have been, by the values of `measured.open`.
    counts: the FLOPs of a step by the convention of the framework whose config it was; empty
        without one.
    sweep: the space of its section [sweep], for `ts.sweep`; None without one.
    search: that of its section [search], for `ts.search`; None without one.
    """

    where: str
    model: Architecture
    plan: Plan
    pod: Slice
    notes: tuple[str, ...] = ()
    train: "TrainingRun | None" = None
    input: Input | None = None
    measured: Measured | None = None
    plausible: "tuple[SimulationRun, ...]" = ()
    counts: str = ""
    sweep: "Space | None" = None
    search: "AskedSearch | None" = None


@checked_call
def read_run(path: str | Path, overrides: Sequence[str] = ()) -> SimulationRun:
    """Return the run of a file, changed by `overrides` such as `plan.remat=minimal`.

    A run that is changed is another than the one that was measured, so its `measured` is None.

    Raise a TpusimError of one sentence, which names the file and the key, for a file that cannot be
    read, for keys that do not exist, are missing or have the wrong type, and for values that no
    slice, model or plan can have.
    """
    where, written = written_tables(path, overrides)
    return changed_run(written, overrides, where, Path(path).parent)


def changed_run(
    written: Mapping[str, Any], overrides: Sequence[str], where: str, folder: Path
) -> SimulationRun:
    """Return the run of the tables of a file, changed by `overrides`. Raise as `read_run` does."""
    changed = any(text.strip().partition(".")[0] in _OF_THE_STEP for text in overrides)
    with blame(where):
        given = override(dict(written), overrides)
        run = run_of(_without_open(given) if changed else given, where, folder)
    return replace(run, measured=None, plausible=()) if changed else run


def _without_open(tables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return tables without the open values of the measurement, which are those of the file."""
    measured = tables.get("measured")
    if not isinstance(measured, Mapping):
        return tables
    return {**tables, "measured": {k: v for k, v in measured.items() if k != "open"}}


def read_one_plan(path: str | Path, overrides: Sequence[str] = ()) -> SimulationRun:
    """Return the run of a file without [sweep] and [search]. Raise as `read_run` does."""
    return one_plan(read_run(path, overrides))


def one_plan(run: SimulationRun) -> SimulationRun:
    """Return a run itself. Raise FileError if it has a section [sweep] or [search]."""
    for name in SPACES:
        if getattr(run, name) is not None:
            raise FileError(
                f"{run.where}: the section [{name}] is for the command {name}; leave it out to "
                "simulate the plan"
            )
    return run


def read_space(
    path: str | Path, name: Literal["sweep", "search"], overrides: Sequence[str] = ()
) -> SimulationRun:
    """Return the run of a file with a section [sweep] or [search]. Raise as `read_run` does."""
    return with_space(read_run(path, overrides), name)


def with_space(run: SimulationRun, name: Literal["sweep", "search"]) -> SimulationRun:
    """Return a run itself. Raise PlanError if it has no section [sweep] or [search]."""
    if getattr(run, name) is None:
        raise PlanError(f"{run.where}: the section [{name}] is missing; write {wanted([name])}")
    return run


def run_of(tables: Mapping[str, Any], where: str, folder: Path) -> SimulationRun:
    """Return the run of the tables of a run file. Raise as `read_run` does, without the file.

    where: the words that name the run in messages.
    folder: that `model.hf` and `slice.calibration` are relative to.
    """
    if SERVING in tables:
        raise PlanError(
            "[serving] is of a server, which the commands serve and simulate and ts.read_serving "
            "read; a plan of training has a section [plan]"
        )
    rest, train = split_train(tables)
    given, other = split_model(rest)
    kind = next((name for name in SPACES if name in given), "")
    data = validated(FILES[kind](), given)
    tries = data.get(kind, {})
    if "vary" in tries:
        tries["vary"] = dict(PLAN_KEYS.spelt_out(tries["vary"]))
    if kind:
        data["plan"]["mesh"] = _base_mesh(kind, data["plan"], tries)
    model, notes = model_of(data["model"], folder, other)
    plan = Plan(**data["plan"])
    pod = slice_of(data["slice"], folder) if "slice" in data else None
    sweep, search = None, None
    if kind == "sweep":
        from tpusim.sweeps import Space

        sweep = Space(base=plan, **tries)
    elif kind == "search":
        from tpusim.searches.request import SearchRequest

        search = SearchRequest(**tries).asked(model, plan, pod)
        pod = pod or search.space.slices[0]
    run = SimulationRun(
        where,
        model,
        plan,
        cast("Slice", pod),
        notes,
        train,
        Input(**data["input"]) if "input" in data else None,
        Measured(**data["measured"]) if "measured" in data else None,
        sweep=sweep,
        search=search,
    )
    return replace(run, plausible=_plausible(run, tables, folder))


def _plausible(
    run: SimulationRun, tables: Mapping[str, Any], folder: Path
) -> tuple[SimulationRun, ...]:
    """Return the runs of all combinations of the values of `measured.open` but the run itself.

    Raise a TpusimError for a key that is none of a run, and for values without the run's own.
    """
    if run.measured is None or not run.measured.open:
        return ()
    rest = {name: table for name, table in tables.items() if name != "measured"}

    def changed(settings: Sequence[str]) -> SimulationRun:
        where = f"measured.open, {', '.join(settings)}"
        with blame(where):
            return run_of(override(rest, settings), where, folder)

    written = {key: _settings(key, values) for key, values in run.measured.open.items()}
    for key, choices in written.items():
        if not any(_same(changed(settings), run) for settings in choices):
            raise PlanError(
                f"measured.open has {toml(list(run.measured.open[key]))} for {key}, and none of "
                "them is the file's own value; write it among them"
            )
    found = (changed([*chain(*settings)]) for settings in product(*written.values()))
    return tuple(each for each in found if not _same(each, run))


def _settings(key: str, values: Sequence[Any]) -> list[list[str]]:
    """Return the settings of each value of a key of `measured.open`, or of keys that go together.

    Raise PlanError for a key that is none of what runs.
    """
    names = open_keys(key)
    for name in names:
        if name.partition(".")[0] not in _OF_THE_STEP:
            raise PlanError(
                f"measured.open has {shown(name)}, which is no key of what runs; write keys such "
                "as plan.seq_len, of [slice], [model], [plan] or [input]"
            )
    rows = values if len(names) > 1 else [[value] for value in values]
    return [[f"{n}={toml(v)}" for n, v in zip(names, row, strict=True)] for row in rows]


def _same(one: SimulationRun, other: SimulationRun) -> bool:
    """Return True if two runs are the same but for names."""
    return all(
        _nameless(getattr(one, key)) == _nameless(getattr(other, key))
        for key in ("model", "plan", "pod", "input")
    )


def _nameless(part: Any) -> Any:
    named: bool = isinstance(part, Architecture)
    return replace(part, name="") if named else part


def measured_of(tables: Mapping[str, Any]) -> Measured:
    """Return the measurement of the tables of a run file. Raise if there is none or it is wrong."""
    return Measured(**validated(measured_file(), dict(tables))["measured"])


def changed_plan(plan: Plan, settings: Sequence[str]) -> Plan:
    """Return a plan changed by `settings` such as `plan.remat=minimal`.

    Raise as `read_run` does, and for a setting of anything but the plan.
    """
    for setting in settings:
        if setting.partition("=")[1] and not setting.strip().startswith("plan."):
            raise PlanError(
                f"--set {cut(setting)} is no setting of the plan; write plan.KEY=VALUE, and the "
                "model and the slice by their own keys"
            )
    given = validated(plan_file(), override({"plan": {}}, settings))["plan"]
    return plan.replace(**given)


def written_tables(path: str | Path, overrides: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the words that name a file and its settings, and the file's tables."""
    if not is_list(overrides):
        raise FileError(
            f"overrides is {shown(overrides)}; write a list of settings, such as "
            "['plan.remat=minimal']"
        )
    with blame(str(path)):
        written = read_toml(path_of(path, "read_run"))
    return " ".join([str(path), *(f"--set {cut(text)}" for text in overrides)]), written


def model_of(
    section: Mapping[str, Any], folder: Path, other: Architecture | None
) -> tuple[Architecture, tuple[str, ...]]:
    """Return the model of a file in `folder`, and what of its config is not modelled."""
    given = dict(section)
    config = folder / given.pop("hf") if "hf" in given else None
    model = other or (_model(given) if config is None else _configured(given, config))
    return model, () if config is None else models.hf_notes(config)


def _base_mesh(kind: str, plan: Mapping[str, Any], tries: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the mesh of the plan that a sweep or a search varies: its own, or their axes."""
    if "mesh" not in plan:
        axes, meshes = tries.get("axes"), tries.get("meshes")
        if kind == "sweep" and not axes and not meshes:
            raise PlanError(
                f"plan.mesh is missing; write {wanted(['plan', 'mesh'])}, or sweep.axes or "
                "sweep.meshes"
            )
        return dict.fromkeys(axes or (), 1) or (meshes or [{"data": 1}])[0]
    if kind == "search":
        raise PlanError(
            "plan.mesh is given, but a search chooses the mesh; write search.axes or "
            "search.meshes instead"
        )
    mesh: Mapping[str, int] = plan["mesh"]
    return mesh


def validated(file: type[BaseModel], data: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that are written, checked."""
    try:
        return file.model_validate(data).model_dump(exclude_unset=True)
    except ValidationError as error:
        raise fault_of(error, data) from error


def slice_of(given: Mapping[str, Any], folder: Path) -> Slice:
    """Return the slice of a file in `folder`."""
    others = {key: value for key, value in given.items() if key not in ("name", *_SHAPED)}
    if "calibration" in others:
        with blame("slice.calibration"):
            others["calibration"] = read_calibration(folder / others["calibration"])
    if "name" not in given:
        for key in _SHAPED:
            if key not in given:
                raise HardwareError(f"slice.{key} is missing; write {wanted(['slice'])}")
        return Slice(given["chip"], given["topology"], **others)
    if "chip" in given or "topology" in given:
        raise HardwareError(
            "[slice] has a name and a chip or topology besides; write the name alone, "
            "or chip and topology"
        )
    return Slice.from_name(given["name"], **others)


def _model(given: Mapping[str, Any]) -> Architecture:
    """Return a model of the zoo with the file's changes, or one of the file's own dimensions."""
    name = _name(given)
    changes = {key: value for key, value in given.items() if key != "name"}
    if name in models.names(Transformer):
        return _changed({"name": name, **models.published_keys(Transformer, name)}, changes)
    if "name" in given and not changes:
        raise ModelError(models.unknown(name))
    for key in required(Transformer):
        if key not in given:
            raise ModelError(
                f"model.{key} is missing; write {wanted(['model', key])}, or the name of a "
                f"published model (tpusim models lists them), or hf with {wanted(['model', 'hf'])}"
            )
    return Transformer(**given)


def _name(given: Mapping[str, Any]) -> str:
    name: str = given.get("name", "transformer")
    if not name.isprintable() or not 0 < len(name) <= LONGEST_NAME:
        raise ModelError(
            f"model.name is {shown(name, 'the text ')}; write 1 to {LONGEST_NAME} printable "
            "characters"
        )
    return name


def _configured(given: Mapping[str, Any], config: Path) -> Architecture:
    """Return the model of a Hugging Face config with the file's changes."""
    if _name(given) in models.names(Transformer):
        raise ModelError(
            f"[model] has hf and the name of a model of the zoo, {given['name']}; write one of them"
        )
    read = models.hf_dimensions(config)
    kind = models.hf_architecture(config)
    if kind is not Transformer:
        return _of_other_kind(kind, {**read, **given})
    if "name" in given:
        return Transformer(**MODEL_KEYS.merged(read, given))
    return _changed(read, given)


def _of_other_kind(kind: type[Architecture], keys: Mapping[str, Any]) -> Architecture:
    """Return the model of a config that is no `Transformer`, with the file's changes."""
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for key in keys:
        if key not in known:
            raise ModelError(
                f"model.{key} is no field of {kind.__name__}, which this config is read as; "
                f"{nearest(key, known)}"
            )
    return kind(**keys)


def _changed(dimensions: Mapping[str, Any], changes: Mapping[str, Any]) -> Transformer:
    """Return a published model with some dimensions changed; its name says which."""
    said = ", ".join(f"{key}={value}" for key, value in MODEL_KEYS.spelt_out(changes))
    name = f"{dimensions['name']} with {said}" if said else dimensions["name"]
    return Transformer(**MODEL_KEYS.merged(dimensions, {**changes, "name": name}))
