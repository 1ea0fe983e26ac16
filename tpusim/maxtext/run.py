"""The run of a MaxText config, and notes on what it leaves out."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import TpusimError, blame
from tpusim.base.shown_value import cut, shown
from tpusim.hardware import Slice
from tpusim.maxtext.config import MaxTextConfig, Overrides, config_of, source, without_override
from tpusim.maxtext.counted_flops import counts_of
from tpusim.maxtext.features import noted, refused
from tpusim.maxtext.logical_axes import rule_notes
from tpusim.maxtext.mesh import slice_of
from tpusim.maxtext.model import block_of, model_of
from tpusim.maxtext.plan import plan_of
from tpusim.maxtext.shipped_tables import defaults, ignored, similar_key, typed_defaults
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.runfile import SimulationRun, changed_plan

SIZE = "_parallelism"
"""The end of the names of the keys with sizes of mesh axes."""

MOST_LISTED = 30
"""The most ignored keys that are listed one by one; of more, only their number."""

Taken: TypeAlias = tuple[Transformer, Plan, Slice]


@checked_call
def from_maxtext(
    config: str | Path | None,
    overrides: Overrides = (),
    *,
    pod: Slice | str | None = None,
    settings: Sequence[str] = (),
    verbose: bool = False,
) -> SimulationRun:
    """Return the run of a MaxText config: its model, plan and slice, and notes on differences.

    Each key is read, noted where it asks for a small feature that is not modelled, refused where it
    asks for one that changes a step more, or ignored as no step depends on it. `counts` of the run
    says the FLOPs of its step as MaxText counts them.

    config: the path of a config, or None (or `defaults`) for MaxText's own.
    overrides: `key=value` texts as on MaxText's command line, or a table. They hold over what
        `model_name` stands for, that over the file, and the file over MaxText's defaults.
    pod: the slice, such as `v5e-256` or `v6e:4x8`, in place of `compile_topology`; or a `Slice`,
        with as many slices as it has.
    settings: changes of the plan beyond MaxText's keys, such as `plan.lowering=ideal`.
    verbose: the notes list all keys that are ignored, by the reason.

    Raise a TpusimError of one sentence for a file that cannot be read, an override of a key that
    does not exist, wrong or contradicting values, and what cannot be simulated.
    """
    where, file = source(config)
    with blame(where):
        return _run(config_of(where, file, overrides), pod, settings, verbose)


def _run(
    config: MaxTextConfig, pod: Slice | str | None, settings: Sequence[str], verbose: bool
) -> SimulationRun:
    block_of(config)
    _check_refused(config)
    model, plan, on = taken = _taken(config, pod)
    notes = (
        *_notes(config, verbose),
        *rule_notes(config, plan.mesh),
        *_idle(config, pod, taken),
    )
    changed = changed_plan(plan, settings) if settings else plan
    counts = counts_of(model, changed, on)
    return SimulationRun(config.where, model, changed, on, notes, counts=counts)


def _taken(config: MaxTextConfig, pod: Slice | str | None) -> Taken:
    on = slice_of(config, pod)
    model = model_of(config)
    return model, plan_of(config, model, on), on


def _check_refused(config: MaxTextConfig) -> None:
    """Raise PlanError for a key of a feature that cannot be left out."""
    for key, feature in refused().items():
        if config.asks_for(key, feature):
            usual = f"{key}={shown(typed_defaults()[key])}".replace("'", "")
            instead = feature.instead or f"write {usual}"
            if key in config.model and key not in config.over:
                instead = instead.replace(usual, f"{usual} override_model_config=true")
            asked = f"{key} is {shown(config.table[key])}"
            raise config.fault(f"{asked}: {feature.what} cannot be simulated; {instead}")


def _notes(config: MaxTextConfig, verbose: bool) -> Iterator[str]:
    """Yield a sentence for each difference between the run and the config."""
    for what, keys in _noted(config).items():
        values = ", ".join(f"{key} = {shown(config.table[key])}" for key in keys)
        yield f"not modelled: {what} ({values})"
    if config.replaced:
        replaced = ", ".join(config.replaced)
        yield f"model_name {config.text('model_name')} sets {replaced} in the file's place"
    yield from _ignored(config, verbose)
    for key in config.unknown:
        hint = "; ".join(filter(None, (cut(key), similar_key(key))))
        yield f"ignored, as no key of MaxText is called so: {hint}"


def _noted(config: MaxTextConfig) -> Mapping[str, list[str]]:
    """Return the features that are not modelled, each with the keys that ask for it."""
    found: dict[str, list[str]] = {}
    for key, feature in noted().items():
        if config.asks_for(key, feature):
            found.setdefault(feature.what, []).append(key)
    return found


def _ignored(config: MaxTextConfig, verbose: bool) -> Iterator[str]:
    """Yield a sentence on the keys that change no step; if `verbose`, one for each reason."""
    unread = {key: ignored()[key] for key in {**config.file, **config.over} if key in ignored()}
    if verbose:
        for why in dict.fromkeys(unread.values()):
            listed = ", ".join(key for key, of in unread.items() if of == why)
            yield f"ignored ({why}): {listed}"
    elif len(unread) > MOST_LISTED:
        yield f"ignored, as no step depends on them: {len(unread)} keys (--verbose lists them)"
    elif unread:
        yield f"ignored, as no step depends on them: {', '.join(unread)}"


def _idle(config: MaxTextConfig, pod: Slice | str | None, taken: Taken) -> Iterator[str]:
    """Yield a note on the overrides that do not change the run, though their kind may.

    Sizes of mesh axes are left out: -1, which fills an axis in, is often the size that they give.
    """
    features = {**noted(), **refused()}
    idle = [
        f"{key} = {shown(config.table[key])}"
        for key in config.over
        if key in features and config.differs(key) and not config.asks_for(key, features[key])
    ]
    for key in config.over:
        if key not in defaults() or key in noted() or key.endswith(SIZE):
            continue
        try:
            other = without_override(config, key)
            same = other.table[key] != config.table[key] and _taken(other, pod) == taken
        except TpusimError:
            continue
        if same:
            idle.append(f"{key} = {shown(config.table[key])}")
    if idle:
        yield f"changes nothing here: {', '.join(idle)}"
