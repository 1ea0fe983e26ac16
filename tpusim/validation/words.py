"""From a run's columns to the words of a simulation: model, plan and slice.

What the simulator lacks is a reason, what it takes otherwise than the run had it is a note.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tpusim.errors import PlanError, nearest
from tpusim.graph import POLICIES, Op, Remat, Scan
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.partition import Plan
from tpusim.validation.devices import mesh_in_devices, pod_of
from tpusim.validation.frameworks import FRAMEWORKS, framework_of, optimizer_of
from tpusim.validation.measured import Measured
from tpusim.validation.model import model_of, widths_of
from tpusim.validation.precision import DTYPES, precision_notes, precision_of

QUANTISED = ("int8", "fp8")
TRANSPOSED = "fsdp_transpose"
UNSUPPORTED_AXES = {
    "sequence": "sequences sharded over chips",
    "stage": "pipelines",
    "pipeline": "pipelines",
    "dcn_pipeline": "pipelines",
}
SAVED_NAMES: Mapping[str, tuple[str, ...]] = {
    "mlp_in": ("mlp_in", "mlp_in_0", "mlp_in_1"),
    "mlpwi": ("mlp_in", "mlp_in_0", "mlp_in_1"),
    "mlpwi_0": ("mlp_in_0",),
    "mlpwi_1": ("mlp_in_1",),
    "mlpwo": ("mlp_out",),
    "moe_mlpwi_0": ("expert_mlp_in_0",),
    "moe_mlpwi_1": ("expert_mlp_in_1",),
    "moe_mlpwo": ("expert_out",),
}
"""Names of tensors in the table where they differ from ours."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated for a run, and the notes on what it takes otherwise."""

    model: Transformer
    plan: Plan
    pod: Slice
    notes: tuple[str, ...]


def setup(run: Measured) -> Setup:
    """The simulation of a run; a `TpusimError` where it contradicts itself."""
    pod, counted = pod_of(run)
    model, chosen = model_of(run)
    plan, taken = plan_of(run, model, pod)
    return Setup(model, plan, pod, (*counted, *taken, *notes_of(run), *chosen))


def obstacles(run: Measured) -> Iterator[str]:
    """What of a run cannot be simulated yet."""
    if widths_of(run) is None:
        yield f"a head_dim of {run.head_dim} in this model"
    if run.dtype not in (*DTYPES, *QUANTISED):
        yield f"{run.dtype} matmuls"
    for axis, size in mesh_of(run).items():
        if axis in UNSUPPORTED_AXES and size > 1:
            yield f"{UNSUPPORTED_AXES[axis]} (mesh axis {axis})"


def mesh_of(run: Measured) -> dict[str, int]:
    """The axes of the mesh and their sizes."""
    mesh: dict[str, int] = {}
    for part in filter(None, run.mesh.split(";")):
        found = re.fullmatch(r"\s*(\w+)\s*=\s*([0-9]{1,9})\s*", part)
        if not found or found[1] in mesh:
            raise PlanError(f"the mesh is {run.mesh!r}; write each axis once, as fsdp=64;tensor=4")
        mesh[found[1]] = int(found[2])
    return mesh


def plan_of(run: Measured, model: Transformer, pod: Slice) -> tuple[Plan, tuple[str, ...]]:
    """Mesh, batch, remat and lowering of a run; and notes on the mesh."""
    mesh, notes = mesh_in_devices(run, mesh_of(run), pod)
    remat, save, offload = _remat(run, model)
    quantised = run.dtype if run.dtype in QUANTISED else ""
    plan = Plan(
        mesh=mesh, seq_len=run.seq_len, global_batch=run.global_batch, remat=remat, save=save,
        offload=offload, vocab_tiles=max(run.vocab_tiles, 1), rules=_rules(run, mesh),
        optimizer=optimizer_of(run)[0],
        dtype=DTYPES.get(run.dtype, "bf16"), matmul_dtype=quantised,
        style=framework_of(run).style, capacity_factor=run.capacity_factor,
        expert_exchange=run.expert_exchange or "all-to-all", **precision_of(run),
    )  # fmt: skip
    return plan, notes


def _rules(run: Measured, mesh: Mapping[str, int]) -> dict[str, str | tuple[str, ...]]:
    """Sharding beside the defaults: Lingvo's embed over tensor, the other dimension of weights."""
    rules: dict[str, str | tuple[str, ...]] = {}
    if run.framework == "lingvo" and "tensor" in mesh:
        rules["act_embed"] = "tensor"
    if TRANSPOSED in mesh:
        other = tuple(axis for axis in (TRANSPOSED, "tensor") if axis in mesh)
        rules |= dict.fromkeys(("mlp", "heads", "kv_heads", "vocab"), other)
        batch = ("dcn_data", "dcn_fsdp", "data", "fsdp", TRANSPOSED, "expert")
        rules["act_batch"] = tuple(axis for axis in batch if axis in mesh)
    return rules


def _remat(run: Measured, model: Transformer) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The policy, the tensors saved besides, and those saved on the host.

    A policy in the column of saved tensors replaces that of `remat`; in the column of offloaded
    ones it stands for the tensors that it saves.
    """
    policy, _, excluded = run.remat.partition(":")
    listed = _names(run.save)
    for name in listed:
        if name in POLICIES:
            policy, listed = name, [other for other in listed if other != name]
    saved = {tensor for name in listed for tensor in _tensors(name, model)}
    hosted = set(_hosted(run, model))
    if policy == "minimal_except":
        policy, saved = "full", saved | set(_kept("minimal", model)) - _left_out(excluded, model)
    elif policy not in POLICIES or excluded:
        known = (*POLICIES, "minimal_except:mlp_in")
        raise PlanError(f"remat is {run.remat!r}, which is not a policy: {nearest(policy, known)}")
    return policy, tuple(sorted(saved - hosted)), tuple(sorted(hosted))


def _left_out(excluded: str, model: Transformer) -> set[str]:
    """The tensors of a list that `minimal` is to leave out; each has to be one of the model's."""
    known = {tensor.short for op in _layer(model) for tensor in (*op.inputs, *op.outputs)}
    for name in _names(excluded):
        if name not in known and name not in SAVED_NAMES:
            raise PlanError(
                f"remat is minimal_except:{excluded}, but {name!r} is no tensor of a layer: "
                f"{nearest(name, (*known, *SAVED_NAMES))}"
            )
    return {tensor for name in _names(excluded) for tensor in _tensors(name, model)}


def _hosted(run: Measured, model: Transformer) -> Iterator[str]:
    for name in _names(run.offload):
        yield from _kept(name, model) if name in POLICIES else _tensors(name, model)


def _names(column: str) -> list[str]:
    return re.findall(r"[^\s,;]+", column)


def _tensors(name: str, model: Transformer) -> Iterator[str]:
    """Our names of a tensor of the table, those that the model has; an unknown name as it is."""
    known = {tensor.short for op in _layer(model) for tensor in op.outputs}
    if name not in SAVED_NAMES:
        yield name
    yield from (tensor for tensor in SAVED_NAMES.get(name, ()) if tensor in known)


def _kept(policy: str, model: Transformer) -> Iterator[str]:
    """The tensors of a layer that a policy saves."""
    remat = Remat(policy)
    for op in _layer(model):
        yield from (tensor.short for tensor in op.outputs if remat.keeps(op, tensor))


def _layer(model: Transformer) -> tuple[Op, ...]:
    """The operations of one layer of each kind."""
    ops = model.graph(batch=1, seq_len=1).ops
    return tuple(inner for op in ops if isinstance(op, Scan) for inner in op.body)


def notes_of(run: Measured) -> Iterator[str]:
    """What of the run is taken otherwise."""
    if run.dtype in QUANTISED:
        yield (
            f"{run.dtype} taken for the layers' matmuls with weights, forward and both backward "
            "ones, as MaxText's recipes have it; all else in bf16"
        )
    yield from precision_notes(run)
    if note := optimizer_of(run)[1]:
        yield note
    if run.experts and not run.capacity_factor:
        yield "no capacity factor is given: no token is dropped, and experts are chosen evenly"
    if not run.framework:
        yield "no framework is given: lowered as plain JAX"
    elif run.framework not in FRAMEWORKS:
        yield f"the framework ({run.framework}) is lowered as plain JAX"
    if not run.attention:
        yield "no attention is given: taken as a fused kernel"
