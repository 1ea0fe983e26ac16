"""MaxText's names of the tensors that a layer may save, and ours.

One table for MaxText configs and for measured runs.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from tpusim.graph import LAYER_IN, Einsum, Op, Scan
from tpusim.models import Transformer

QKV = ("query_proj", "key_proj", "value_proj", "qkv_proj")
DOTS = (*QKV, "out_proj", "mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo")

TENSORS: Mapping[str, tuple[str, ...]] = {
    "decoder_layer_input": (LAYER_IN,),
    "context": ("context",),
    "query_proj": ("q",),
    "key_proj": ("k",),
    "value_proj": ("v",),
    "qkv_proj": ("qkv",),
    "out_proj": ("out",),
    "mlpwi": ("mlp_in",),
    "mlpwi_0": ("mlp_in_0", "expert_mlp_in_0"),
    "mlpwi_1": ("mlp_in_1", "expert_mlp_in_1"),
    "mlpwo": ("mlp_out", "expert_out"),
    "moe_mlpwi_0": ("expert_mlp_in_0",),
    "moe_mlpwi_1": ("expert_mlp_in_1",),
    "moe_mlpwo": ("expert_out",),
    "kv_proj": ("kv_up",),
    "query_wa_proj": ("q_down",),
    "kv_wa_proj": ("kv_down",),
    "mla_q": ("q_latent",),
    "mla_kv": ("kv_latent",),
}
"""MaxText's names of the tensors that a layer may save (checkpoint_name in its layers), and ours.

`qkv_proj` is there with fused_qkv, `mlpwi` where the MLP has one input matrix, or with fused_mlp.
Those of latent attention and of experts are there with them.
"""

FUSED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "fused_qkv": ("qkv_proj", ("q", "k", "v")),
    "fused_mlp": ("mlpwi", ("mlp_in_0", "mlp_in_1")),
}
"""The key of a config that fuses matmuls, the name of the fused result, and the results of our
matmuls that it stands for where the model has them apart."""


def our_names(
    names: Iterable[str], model: Transformer, fused: Collection[str] = tuple(FUSED)
) -> tuple[str, ...]:
    """Return our names of MaxText's tensors that the model's layers make, sorted.

    The sum over experts has the name of an MLP's last matmul, but is none.

    fused: keys of FUSED whose matmuls are fused.
    """
    names = tuple(names)
    made, matmuls = {LAYER_IN}, set()
    for op in layer_ops(model):
        shorts = {tensor.short for tensor in op.outputs}
        made |= shorts
        matmuls |= shorts if isinstance(op, Einsum) else set()
    found = {
        tensor
        for name in names
        for tensor in TENSORS[name]
        if tensor in (matmuls if name == "mlpwo" else made)
    }
    for name, parts in (FUSED[key] for key in fused):
        found |= matmuls & set(parts) if name in names else set()
    return tuple(sorted(found))


def layer_ops(model: Transformer) -> Iterator[Op]:
    """Yield the operations of the layers, one of each kind."""
    for op in model.graph(batch=1, seq_len=1).ops:
        if isinstance(op, Scan):
            yield from op.body
