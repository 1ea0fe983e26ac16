"""The simulation of a measured run: its model, plan and slice, with notes on what was assumed.

A feature that the simulator lacks is a reason not to simulate the run; anything that is simulated
otherwise than the run had it is a note.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tpusim.base.errors import PlanError, nearest
from tpusim.graph import POLICIES, Remat
from tpusim.hardware import Slice
from tpusim.maxtext.logical_axes import sharding_rules
from tpusim.maxtext.tensor_names import TENSORS, layer_ops, our_names
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.validation.attention_kernels import attention_kernel_of, attention_notes
from tpusim.validation.frameworks import (
    FRAMEWORKS,
    framework_of,
    ignores_remat,
    optimizer_of,
)
from tpusim.validation.measured_runs import MeasuredRun
from tpusim.validation.remark_rules import DTYPE_SPELLINGS
from tpusim.validation.remarks import remarks_of
from tpusim.validation.run_dtypes import QUANTISED_DTYPES, dtype_notes, dtypes_of
from tpusim.validation.run_loss import loss_notes, loss_of
from tpusim.validation.run_mesh import device_mesh, parse_mesh, slice_of
from tpusim.validation.run_model import head_dims_of, model_of

UNSUPPORTED_AXES = {
    "sequence": "sequences sharded over chips",
    "stage": "pipelines",
    "pipeline": "pipelines",
    "dcn_pipeline": "pipelines",
}
OWN_ALIASES: Mapping[str, tuple[str, ...]] = {"mlp_in": ("mlp_in", "mlp_in_0", "mlp_in_1")}
"""Names beside MaxText's (`maxtext/tensor_names.py`) that stand for several tensors."""


@dataclass(frozen=True, slots=True)
class RunSetup:
    """The inputs of the simulation of a run, and notes on what differs from it."""

    model: Transformer
    plan: Plan
    pod: Slice
    notes: tuple[str, ...]


SetupChange: TypeAlias = Callable[[RunSetup], RunSetup]
"""What makes another simulation of a run: another chip, another plan."""


def set_up(run: MeasuredRun) -> RunSetup:
    """Return the simulation of a run. Raise TpusimError if the run contradicts itself."""
    pod, slice_notes = slice_of(run)
    model, model_notes = model_of(run)
    plan, mesh_notes = plan_of(run, model, pod)
    own_notes = (
        *_plan_notes(run, model),
        *model_notes,
        *attention_notes(run),
        *loss_notes(run, model),
    )
    notes = (*slice_notes, *mesh_notes, *own_notes, *remarks_of(run).notes)
    return RunSetup(model, plan, pod, notes)


def unsupported_features(run: MeasuredRun) -> Iterator[str]:
    """Yield the features of a run that cannot be simulated yet."""
    if head_dims_of(run) is None:
        yield f"a head_dim of {run.head_dim} in this model"
    if run.dtype not in (*DTYPE_SPELLINGS, *QUANTISED_DTYPES):
        yield f"{run.dtype} matmuls"
    for axis, size in parse_mesh(run).items():
        if axis in UNSUPPORTED_AXES and size > 1:
            yield f"{UNSUPPORTED_AXES[axis]} (mesh axis {axis})"


def plan_of(run: MeasuredRun, model: Transformer, pod: Slice) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan of a run, and notes on its mesh."""
    mesh, notes = device_mesh(run, pod)
    remat, save, offload = _remat_fields(run, model)
    keys: dict[str, Any] = dict(
        mesh=mesh,
        seq_len=run.seq_len,
        remat=remat,
        save=save,
        offload=offload,
        scan_layers=framework_of(run).scan_layers and not ignores_remat(run, model),
        vocab_tiles=max(run.vocab_tiles, 1),
        optimizer=optimizer_of(run)[0],
        dtype=DTYPE_SPELLINGS.get(run.dtype, "bf16"),
        matmul_dtype=run.dtype if run.dtype in QUANTISED_DTYPES else "",
        style=framework_of(run).style,
        loop=framework_of(run).loop,
        gradient_reduction=framework_of(run).gradient_reduction,
        collective_matmul=run.chip not in framework_of(run).without_rings,
        capacity_factor=run.capacity_factor,
        expert_exchange=run.expert_exchange or "all-to-all",
        **attention_kernel_of(run),
        **dtypes_of(run),
        **loss_of(run, model),
    )
    plan = Plan(global_batch=run.global_batch, **keys)
    rules = _sharding_rules(run, mesh, model)
    return plan.replace(**{**remarks_of(run).plan, "rules": rules}), notes


def _sharding_rules(
    run: MeasuredRun, mesh: Mapping[str, int], model: Transformer
) -> dict[str, str | tuple[str, ...]]:
    """Return the rules beside the style's: MaxText's for the axes that only it has, and remarks'.

    Lingvo shards activations' embed over `tensor`.
    """
    lingvo = {"act_embed": "tensor"} if run.framework == "lingvo" and "tensor" in mesh else {}
    style, latent = framework_of(run).style, model.latent.kv_rank > 0
    own = sharding_rules(mesh, latent=latent, layer_embed=model.layer_embed > 0, style=style)
    return {**lingvo, **own, **remarks_of(run).plan.get("rules", {})}


def _remat_fields(
    run: MeasuredRun, model: Transformer
) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return the remat policy, the tensors saved in HBM and those offloaded to the host.

    A policy in the column `save` replaces that of `remat`; in the column `offload` it stands for
    the tensors that it saves.
    """
    if ignores_remat(run, model):
        return "none", (), ()
    policy, _, excluded = run.remat.partition(":")
    listed = _split_names(run.save)
    for name in listed:
        if name in POLICIES:
            policy, listed = name, [other for other in listed if other != name]
    saved = {tensor for name in listed for tensor in _resolve_alias(name, model)}
    offloaded = set(_offloaded_tensors(run, model))
    if policy == "minimal_except":
        kept = set(_tensors_saved_by("minimal", model)) - _excluded_tensors(excluded, model)
        policy, saved = "full", saved | kept
    elif policy not in POLICIES or excluded:
        known = (*POLICIES, "minimal_except:mlp_in")
        raise PlanError(f"remat is {run.remat!r}, which is not a policy: {nearest(policy, known)}")
    return policy, tuple(sorted(saved - offloaded)), tuple(sorted(offloaded))


def _excluded_tensors(excluded: str, model: Transformer) -> set[str]:
    """Return the tensors that `minimal` leaves out. Raise PlanError for a name no layer has."""
    known = {tensor.short for op in layer_ops(model) for tensor in (*op.inputs, *op.outputs)}
    aliases = (*OWN_ALIASES, *TENSORS)
    for name in _split_names(excluded):
        if name not in (*known, *aliases):
            raise PlanError(
                f"remat is minimal_except:{excluded}, but {name!r} is no tensor of a layer: "
                f"{nearest(name, (*known, *aliases))}"
            )
    return {tensor for name in _split_names(excluded) for tensor in _resolve_alias(name, model)}


def _offloaded_tensors(run: MeasuredRun, model: Transformer) -> Iterator[str]:
    for name in _split_names(run.offload):
        in_policy = name in POLICIES
        yield from _tensors_saved_by(name, model) if in_policy else _resolve_alias(name, model)


def _split_names(cell: str) -> list[str]:
    return re.findall(r"[^\s,;]+", cell)


def _resolve_alias(name: str, model: Transformer) -> Iterator[str]:
    """Yield the tensors of the model that a name stands for; an unknown name stands for itself."""
    if name in TENSORS:
        yield from our_names([name], model)
    elif name in OWN_ALIASES:
        known = {tensor.short for op in layer_ops(model) for tensor in op.outputs}
        yield from (tensor for tensor in OWN_ALIASES[name] if tensor in known)
    else:
        yield name


def _tensors_saved_by(policy: Any, model: Transformer) -> Iterator[str]:
    """Yield the tensors of a layer that a remat policy saves."""
    remat = Remat(policy)
    for op in layer_ops(model):
        yield from (tensor.short for tensor in op.outputs if remat.keeps(op, tensor))


def _plan_notes(run: MeasuredRun, model: Transformer) -> Iterator[str]:
    """Yield what the plan assumes or changes."""
    yield from dtype_notes(run)
    if note := optimizer_of(run)[1]:
        yield note
    if run.experts and not run.capacity_factor and "capacity_factor" not in remarks_of(run).plan:
        yield "no capacity factor is given: no token is dropped, and experts are chosen evenly"
    if not run.framework:
        yield "no framework is given: lowered as plain JAX"
    elif run.framework not in FRAMEWORKS:
        yield f"the framework ({run.framework}) is lowered as plain JAX"
    if ignores_remat(run, model):
        yield (
            f"remat is none, and layers are not scanned: {run.framework} did not apply its policy "
            "to layers with embeddings of their own"
        )
    if not run.attention:
        yield "no attention is given: taken as a fused kernel"
