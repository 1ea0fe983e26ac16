"""The tensors that MaxText's `remat_policy` saves, by our names, and their memory."""

from collections.abc import Iterable, Iterator, Mapping

from tpusim.base.errors import nearest
from tpusim.base.shown_value import shown
from tpusim.graph import LAYER_IN, Einsum, Op, Remat, Scan
from tpusim.maxtext.config import MaxTextConfig
from tpusim.maxtext.shipped_tables import shipped
from tpusim.models import Transformer

TENSORS: Mapping[str, tuple[str, ...]] = {
    name: tuple(ours) for name, ours in shipped("tensor_names").items()
}
"""MaxText's names of the tensors that a layer may save, and ours."""

FUSED_MLP = ("mlpwi", ("mlp_in_0", "mlp_in_1"))
"""MaxText's name of what an MLP's input matrices make together (`fused_mlp`), and ours of each."""

POLICIES = shipped("remat_policies")
PROJECTIONS = POLICIES["offloaded"]["minimal_offloaded"]
"""Policies by how they save, and MaxText's names of all projections."""

CUSTOM = ("device", "offload", "remat")

Saved = tuple[str, tuple[str, ...], tuple[str, ...]]
"""A plan's policy, the tensors saved besides, and those saved on the host."""


def remat_of(config: MaxTextConfig, model: Transformer) -> Saved:
    """Return the rematerialisation of a config, for the tensors that the model's layers have."""
    policy = POLICIES["other_names"].get(config.text("remat_policy"), config.text("remat_policy"))
    if policy == "custom":
        return _custom(config, model)
    if policy in POLICIES["projections"]:
        return _save_projections(tuple(POLICIES["projections"][policy]), config, model)
    if policy in POLICIES["offloaded"]:
        return "full", (), _our_names(POLICIES["offloaded"][policy], config, model)
    if policy in POLICIES["saved"]:
        return "full", _our_names(POLICIES["saved"][policy], config, model), ()
    if policy in POLICIES["refused"]:
        raise config.fault(
            f"remat_policy {policy} saves {POLICIES['refused'][policy]}, which cannot be "
            "simulated; write minimal, or minimal_with_context"
        )
    known = (name for part in POLICIES.values() for name in (*part, "custom"))
    raise config.fault(
        f"remat_policy is {shown(policy)}, which cannot be simulated; {nearest(policy, known)}"
    )


def _custom(config: MaxTextConfig, model: Transformer) -> Saved:
    """Return each tensor in the memory of its key; the input of a layer is always saved."""
    where: dict[str, list[str]] = {choice: [] for choice in CUSTOM}
    for name in TENSORS:
        where[config.choice(name, dict(zip(CUSTOM, CUSTOM, strict=True)))].append(name)
    if "decoder_layer_input" in where["remat"]:
        raise config.fault(
            "decoder_layer_input is remat, but recomputation starts from it; write device or "
            "offload"
        )
    offload = _our_names(where["offload"], config, model)
    save = _our_names(where["device"], config, model)
    return "full", tuple(name for name in save if name not in (LAYER_IN, *offload)), offload


def _save_projections(besides: tuple[str, ...], config: MaxTextConfig, model: Transformer) -> Saved:
    """Return our `minimal` if it saves what MaxText names, otherwise those names.

    MaxText has no name for a router, nor for the projections to the latents.
    """
    named, minimal = _our_names(PROJECTIONS, config, model), Remat("minimal")
    kept = {t.short for op in _layer_ops(model) for t in op.outputs if minimal.keeps(op, t)}
    if kept - {LAYER_IN} == set(named):
        return "minimal", besides, ()
    return "full", tuple(sorted({*named, *besides})), ()


def _our_names(names: Iterable[str], config: MaxTextConfig, model: Transformer) -> tuple[str, ...]:
    """Return our names of MaxText's tensors that the model's layers make, sorted.

    The sum over experts has the name of an MLP's last matmul, but is none.
    """
    names = tuple(names)
    made, matmuls = {LAYER_IN}, set()
    for op in _layer_ops(model):
        shorts = {tensor.short for tensor in op.outputs}
        made |= shorts
        matmuls |= shorts if isinstance(op, Einsum) else set()
    found = {
        tensor
        for name in names
        for tensor in TENSORS[name]
        if tensor in (matmuls if name == "mlpwo" else made)
    }
    name, parts = FUSED_MLP
    found |= matmuls & set(parts) if config.flag("fused_mlp") and name in names else set()
    return tuple(sorted(found))


def _layer_ops(model: Transformer) -> Iterator[Op]:
    """Yield the operations of the layers, one of each kind."""
    for op in model.graph(batch=1, seq_len=1).ops:
        if isinstance(op, Scan):
            yield from op.body
