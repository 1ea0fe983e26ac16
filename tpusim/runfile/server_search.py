"""Run files of servers with [search] and [targets]: the space, and what a server has to meet.

[serving] is what all servers share, without a mesh; [search] has the keys of a search of plans that
a server has: `slices`, or `generations` with `chips`; `axes` or `meshes`; `most`, `vary`,
`objective` and `top`. The keys of `search.vary` are those of [serving].
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError, blame, nearest
from tpusim.base.shown_value import shown
from tpusim.base.toml_text import toml
from tpusim.base.value_checks import is_list
from tpusim.hardware import Slice, parse_slice
from tpusim.runfile.read_run import (
    SimulationRun,
    changed_run,
    one_plan,
    with_space,
    written_tables,
)
from tpusim.runfile.read_serving import serving_of
from tpusim.runfile.serving import SERVING, ServingRun
from tpusim.runfile.toml_tables import override

if TYPE_CHECKING:
    from tpusim.serving.search import ServerSpace, Targets

SEARCH: Literal["search"] = "search"
TARGETS, SLICES = "targets", "slices"

_LISTS = ("slices", "generations", "chips", "axes", "meshes")
_TABLES = ("most", "vary")
SEARCH_KEYS = (*_LISTS, *_TABLES, "objective", "top")
"""The keys of [search] beside [serving]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSearchRun:
    """What a run file with [serving], [search] and [targets] says.

    run: the server whose settings all servers of the space share, on the first slice.
    space, targets: the arguments of `ts.search_servers`.
    how: its further arguments, by name.
    """

    run: ServingRun
    space: "ServerSpace"
    targets: "Targets"
    how: Mapping[str, Any]


@checked_call
def read_search(path: str | Path, overrides: Sequence[str] = ()) -> SimulationRun | ServerSearchRun:
    """Return the search of a file: of plans, or of servers where it has a section [serving].

    Raise a TpusimError of one sentence, which names the file and the key, as `read_run` does.
    """
    where, written = written_tables(path, overrides)
    folder = Path(path).parent
    if SERVING not in written:
        return with_space(changed_run(written, overrides, where, folder), SEARCH)
    with blame(where):
        return _search_of(override(written, overrides), where, folder)


@checked_call
def read_advised(
    path: str | Path, overrides: Sequence[str] = ()
) -> "SimulationRun | tuple[ServingRun, Targets | None]":
    """Return what a file says to advise on: a step of training, or a server and its targets.

    Raise as `read_search` does, also for a file with [sweep] or [search].
    """
    where, written = written_tables(path, overrides)
    folder = Path(path).parent
    if SERVING not in written:
        return one_plan(changed_run(written, overrides, where, folder))
    with blame(where):
        tables = override(written, overrides)
        targets = _targets(_table(tables, TARGETS)) if TARGETS in tables else None
        return serving_of(tables, where, folder), targets


def _search_of(tables: Mapping[str, Any], where: str, folder: Path) -> ServerSearchRun:
    from tpusim.serving.search import ServerSpace

    rest = dict(tables)
    given, asked = _table(rest, SEARCH), _table(rest, TARGETS)
    _check_keys(SEARCH, given, SEARCH_KEYS)
    for names, kind, is_kind in ((_LISTS, "list", is_list), (_TABLES, "table", _is_table)):
        for key in names:
            if key in given and not is_kind(given[key]):
                raise PlanError(f"search.{key} is {shown(given[key])}; write a {kind}")
    if "mesh" in rest[SERVING]:
        raise PlanError(
            "serving.mesh is given, but a search chooses the mesh; write search.axes or "
            "search.meshes instead"
        )
    slices = _slices(given, rest)
    if slices:
        rest["slice"] = {"chip": slices[0].chip.name, "topology": str(slices[0].topology)}
    run = serving_of(rest, where, folder)
    for key, values in given.get("vary", {}).items():
        for value in values if is_list(values) else ():
            with blame(f"search.vary.{key}"):
                serving_of({**rest, SERVING: {**rest[SERVING], key: value}}, where, folder)
    space = ServerSpace(
        slices=slices or [run.pod],
        plan=run.plan,
        engine=run.engine,
        options=asdict(run.options),
        **{key: given[key] for key in ("axes", "meshes", "most", "vary") if key in given},
    )
    how = {key: given[key] for key in ("objective", "top") if key in given}
    return ServerSearchRun(run=run, space=space, targets=_targets(asked), how=how)


def _table(rest: dict[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section, taken out of the tables. Raise PlanError without one."""
    examples = {SEARCH: 'slices = ["v6e-4"] and axes = ["tensor"]', TARGETS: "ttft_p99_s = 2.0"}
    if name not in rest:
        raise PlanError(f"the section [{name}] is missing; write one with {examples[name]}")
    found = rest.pop(name)
    if not isinstance(found, dict):
        raise PlanError(f"{name} is {shown(found)}; write a section [{name}]")
    return found


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _check_keys(section: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in given:
        if key not in known:
            raise PlanError(f"[{section}] has an unknown key {key!r}; {nearest(key, known)}")


def _targets(given: Mapping[str, Any]) -> "Targets":
    from tpusim.serving.search import Targets

    _check_keys(TARGETS, given, [each.name for each in fields(Targets)])
    return Targets(**given)


def _slices(given: Mapping[str, Any], rest: Mapping[str, Any]) -> list[Slice]:
    """Return the slices of [search]; none where those of [slice] are meant."""
    if sum((bool(given.get(SLICES)), "generations" in given, "slice" in rest)) != 1:
        raise PlanError(
            "a search takes its slices from one of search.slices, search.generations and [slice]; "
            "write one of them"
        )
    if "generations" not in given:
        return [parse_slice(name) for name in given.get(SLICES, ())]
    chips = given.get("chips", ())
    if len(chips) != 2:
        raise PlanError(
            f"search.chips is {toml(list(chips))}; write the least and the most chips of a slice, "
            "such as [4, 16]"
        )
    from tpusim.searches.slices import slices_of

    return list(slices_of(given["generations"], *chips))
