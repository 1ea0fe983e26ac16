"""The slice and the mesh of a config."""

from math import prod

from tpusim.base.shown_value import shown
from tpusim.hardware import Slice
from tpusim.maxtext.config import MaxTextConfig
from tpusim.maxtext.shipped_tables import unsimulated

KINDS = (
    *("data", "pipeline", "fsdp", "fsdp_transpose", "context", "context_usp_ulysses"),
    *("tensor", "tensor_sequence", "expert"),
)
"""MaxText's `ici_..._parallelism` and `dcn_..._parallelism`, in the order of the mesh's axes."""


def slice_of(config: MaxTextConfig, given: Slice | str | None = None) -> Slice:
    """Return the slices that `given` or `compile_topology` names.

    given: a name such as `v5e-256` or `v6e:4x8`, in place of `compile_topology`, or the slices.
    """
    if config.text("hardware") != "tpu":
        found = shown(config.table["hardware"])
        raise config.fault(f"hardware is {found}; write tpu, which alone can be simulated")
    if isinstance(given, Slice):
        return given
    name = config.text("compile_topology") if given is None else given
    if not name:
        raise config.fault(
            "no slice is given; write compile_topology=v5e-256, or another slice "
            "(--slice v5e:16x16 on the command line)"
        )
    chip, colon, shape = name.partition(":")
    count = _slices(config)
    return Slice(chip, shape, count) if colon else Slice.from_name(name, count)


def _slices(config: MaxTextConfig) -> int:
    """Return the number of slices, as given or as the product of the DCN axes."""
    for key in ("compile_topology_num_slices", "num_slices"):
        if config.table[key] != -1:
            return config.size(key)
    return max(prod(max(size, 1) for size in _sizes(config, "dcn").values()), 1)


def mesh_of(config: MaxTextConfig, pod: Slice) -> dict[str, int]:
    """Return the axes larger than one: those within a slice, then, as `dcn_...`, those across."""
    inside = _filled(config, "ici", pod.devices // pod.num_slices, f"devices of a slice of {pod}")
    across = _filled(config, "dcn", pod.num_slices, "slices")
    mesh = {_axis(kind): size for kind, size in inside.items() if size > 1}
    mesh |= {f"dcn_{_axis(kind)}": size for kind, size in across.items() if size > 1}
    return mesh or {"fsdp": 1}


def _filled(config: MaxTextConfig, level: str, total: int, what: str) -> dict[str, int]:
    """Return the sizes with the one that is -1 filled in, so that their product is `total`."""
    sizes = _sizes(config, level)
    open_ = [kind for kind, size in sizes.items() if size == -1]
    if len(open_) > 1:
        raise config.fault(
            f"{' and '.join(_key(level, kind) for kind in open_)} are -1; leave one of them open"
        )
    fixed = prod(size for size in sizes.values() if size != -1)
    given = [f"{_key(level, kind)}={size}" for kind, size in sizes.items() if size > 1]
    said = " x ".join(given) + (f" = {fixed}" if len(given) > 1 else "") or "1"
    if open_:
        if total % fixed:
            raise config.fault(
                f"{said} does not divide the {total} {what}, so that "
                f"{_key(level, open_[0])} cannot be filled in; write sizes that do"
            )
        sizes[open_[0]] = total // fixed
    elif fixed != total:
        raise config.fault(f"{said} is not the {total} {what}; leave one of the {level} keys at -1")
    for kind, what in unsimulated("parallelism").items():
        if sizes.get(kind, 1) > 1:
            raise config.fault(
                f"{_key(level, kind)} is {sizes[kind]}: {what} cannot be simulated yet; write 1"
            )
    return sizes


def _sizes(config: MaxTextConfig, level: str) -> dict[str, int]:
    sizes = {}
    for kind in (*KINDS, *unsimulated("parallelism")):
        key = _key(level, kind)
        if key in config.table:
            sizes[kind] = -1 if config.table[key] == -1 else config.size(key)
    return sizes


def _axis(kind: str) -> str:
    """Return the axis of the mesh for a kind of parallelism."""
    return "stage" if kind == "pipeline" else kind


def _key(level: str, kind: str) -> str:
    return f"{level}_{kind}_parallelism"
