"""MaxText's names of the tensors that a layer may save, and ours.

One table for MaxText configs and for measured runs.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from tpusim.graph import LAYER_IN, Einsum, Op, Scan
from tpusim.maxtext.shipped_tables import shipped
from tpusim.models import Transformer

QKV = ("query_proj", "key_proj", "value_proj", "qkv_proj")
DOTS = (*QKV, "out_proj", "mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo")

TENSORS: Mapping[str, tuple[str, ...]] = {
    name: tuple(ours) for name, ours in shipped("tensor_names").items()
}
"""MaxText's names of the tensors that a layer may save, and ours."""

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
