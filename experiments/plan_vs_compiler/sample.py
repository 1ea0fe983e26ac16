"""The designed sample: plans over chips, slices, meshes, widths, tokens, remat, attention, flags.

Twin N is drawn by `random.Random(N)`, so that the sample can be continued and any twin repeated.
"""

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import Any

from tpusim import Plan, Slice
from tpusim.base.errors import TpusimError
from tpusim.models import Architecture, Transformer
from tpusim.runfile.architectures import split_model

SLICES = {
    8: ("v5e:2x4", "v6e:2x4", "v4:2x2x2", "v5p:2x2x2", "v3:2x2"),
    16: ("v5e:4x4", "v6e:4x4", "v4:2x2x4", "v5p:2x2x4", "7x:2x2x2"),
    32: ("v5e:4x8", "v6e:4x8", "v4:2x4x4", "v5p:2x4x4", "7x:2x2x4", "v3:4x4", "v5e:4x4 x 2",
         "v6e:4x4 x 2", "v4:2x2x4 x 2", "v5p:2x2x4 x 2"),
    64: ("v5e:8x8", "v6e:8x8", "v4:4x4x4", "v5p:4x4x4", "7x:2x4x4", "v5e:4x4 x 4", "v2:8x8"),
    128: ("v5e:8x16", "v6e:8x16", "v4:4x4x8", "v5p:4x4x8", "7x:4x4x4", "v6e:8x8 x 2"),
    256: ("v5e:16x16", "v6e:16x16", "v4:4x8x8", "v5p:4x8x8", "v5p:4x4x8 x 2"),
}  # fmt: skip
"""Slices by devices per mesh."""

DEVICES = {8: 4, 16: 8, 32: 7, 64: 7, 128: 3, 256: 4}
"""How often meshes of each size are drawn."""

KINDS = {
    "fsdp": 5, "fsdp tensor": 6, "data fsdp": 3, "data fsdp tensor": 2, "tensor": 2, "data": 1,
    "fsdp context": 2, "fsdp expert": 2, "fsdp expert tensor": 1,
}  # fmt: skip
WIDTHS = {1024: 2, 2048: 4, 3072: 2, 4096: 5, 5120: 2, 8192: 3, 12288: 1, 16384: 1}
VOCABULARIES = {32000: 4, 50304: 1, 128256: 3, 256000: 1}
TOKENS = {512: 1, 1024: 2, 2048: 3, 4096: 4, 8192: 4, 16384: 2, 32768: 1}
REMAT = {"full": 6, "minimal": 2, "dots": 2, "none": 1}
LAYERS = 4

MAXTEXT_FLAGS = {
    "xla_tpu_enable_data_parallel_all_reduce_opt": True,
    "xla_tpu_data_parallel_opt_different_sized_ops": True,
    "xla_tpu_enable_async_collective_fusion": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": True,
    "xla_tpu_enable_async_collective_fusion_multiple_steps": True,
    "xla_tpu_overlap_compute_collective_tc": True,
    "xla_enable_async_all_gather": True,
}
"""Flags of MaxText's scripts for v4, v5e and v5p (its configs/v5e/32b.sh)."""

SPARSECORE_FLAGS = MAXTEXT_FLAGS | {
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": False,
    "xla_tpu_enable_sparse_core_collective_offload_all_gather": True,
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter": True,
    "xla_tpu_enable_sparse_core_collective_offload_all_reduce": True,
    "xla_tpu_enable_all_gather_offload_tracing": True,
    "xla_tpu_enable_reduce_scatter_offload_tracing": True,
    "xla_tpu_enable_all_reduce_offload_tracing": True,
    "xla_tpu_use_tc_device_shape_on_sc": True,
    "xla_sc_disable_megacore_partitioning": True,
}
"""Flags of MaxText's recipes that offload collectives to the SparseCore (its
benchmarks/xla_flags_library.py, ENABLE_SPARSECORE_OFFLOADING_FOR_RS_AG_AR; as recalled)."""

FLAGS = {"": {}, "maxtext": MAXTEXT_FLAGS, "sparsecore": SPARSECORE_FLAGS}


@dataclass(frozen=True)
class Twin:
    """A plan of the sample.

    model: the section [model] of a run file.
    plan: the fields of the plan.
    flags: name of the compiler's flags, a key of `FLAGS`.
    system: what the model is, in a designed sample of systems.
    """

    number: int
    pod: Slice
    model: dict[str, Any]
    plan: dict[str, Any]
    flags: str
    system: str = "transformer"

    @property
    def combination(self) -> str:
        """What decides the structure, without widths and tokens."""
        free = {key: self.plan.get(key) for key in ("mesh", "remat", "rules", "microbatches")}
        attention = self.model["attention"] if self.system == "transformer" else self.system
        return json.dumps([str(self.pod), free, attention, self.flags], sort_keys=True)

    @property
    def held_out(self) -> bool:
        """True for the third that rules are judged on, and not learnt from."""
        return hashlib.sha256(self.combination.encode()).digest()[0] % 3 == 0

    def arguments(self) -> tuple[Architecture, Plan, Slice]:
        """Return the arguments of a simulation. Raise TpusimError if they contradict."""
        _, other = split_model({"model": self.model})
        plan = {"grad_dtype": "bf16"} | self.plan  # as was exported when the sample was compiled
        return other or Transformer(**self.model), Plan(**plan), self.pod


def numbers() -> Iterator[int]:
    """Return the numbers of all twins: there is no last one."""
    return count()


def draw(number: int) -> Twin | None:
    """Return twin `number`, or None if what was drawn does not fit together."""
    rng = random.Random(number)
    devices = weighted(rng, DEVICES)
    pod = slice_of(rng.choice(SLICES[devices]))
    kind = weighted(rng, KINDS).split()
    mesh = mesh_of(rng, kind, pod)
    if mesh is None:
        return None
    model = _model(rng, "expert" in kind)
    plan = _plan(rng, mesh, kind, model)
    flags = "maxtext" if pod.chip.generation in ("v4", "v5e", "v5p") and rng.random() < 0.15 else ""
    twin = Twin(number, pod, model, plan, flags)
    try:
        twin.arguments()
    except TpusimError:
        return None
    return twin


def slice_of(name: str) -> Slice:
    """Return the slice of a name such as `v5e:4x4 x 2`."""
    from tpusim.hardware import parse_slice

    return parse_slice(name)


def weighted(rng: random.Random, weights: dict[Any, int]) -> Any:
    """Return one of the keys, drawn as often as its weight says."""
    return rng.choices(list(weights), list(weights.values()))[0]


def mesh_of(rng: random.Random, kind: list[str], pod: Slice) -> dict[str, int] | None:
    """Return sizes of the axes of a kind that fill the slice."""
    left = pod.devices // pod.num_slices
    mesh: dict[str, int] = {}
    if pod.num_slices > 1:
        mesh[rng.choice(["dcn_data", "dcn_data", "dcn_fsdp"])] = pod.num_slices
    limits = {"tensor": 16, "context": 8, "expert": 8}
    for axis in reversed(kind[1:]):
        sizes = [n for n in (2, 4, 8, 16) if n <= min(limits.get(axis, 64), left // 2)]
        if not sizes:
            return None
        mesh[axis] = rng.choice(sizes)
        left //= mesh[axis]
    if left > limits.get(kind[0], 256):
        return None
    order = ("dcn_data", "dcn_fsdp", "data", "fsdp", "context", "expert", "tensor")
    mesh[kind[0]] = left
    return {axis: mesh[axis] for axis in order if axis in mesh}


def _model(rng: random.Random, experts: bool) -> dict[str, Any]:
    embed = weighted(rng, WIDTHS)
    heads = embed // 128
    kv_heads = rng.choice([heads, 8, 8])
    mlp = rng.choice([4 * embed, 7 * embed // 2, 8 * embed // 3 // 256 * 256])
    attention = rng.choice(["flash", "flash", "dot"])
    model: dict[str, Any] = {
        "name": "twin", "layers": LAYERS, "embed": embed, "mlp": mlp, "heads": heads,
        "kv_heads": kv_heads if heads % kv_heads == 0 else heads, "head_dim": 128,
        "vocab": weighted(rng, VOCABULARIES), "attention": attention,
    }  # fmt: skip
    if attention == "dot" and rng.random() < 0.7:
        model["softmax_dtype"] = "f32"
    if rng.random() < 0.1:
        model |= {"gated": False, "activation": "gelu", "kind": "encoder"}
    if experts:
        model |= {"experts": rng.choice([8, 16]), "experts_per_token": rng.choice([1, 2])}
        model["mlp"] = min(mlp, 8192)
    return model


def _plan(
    rng: random.Random, mesh: dict[str, int], kind: list[str], model: dict[str, Any]
) -> dict[str, Any]:
    across = prod(size for axis, size in mesh.items() if axis != "tensor")
    tokens = weighted(rng, TOKENS)
    context = mesh.get("context", 1)
    seq_len = rng.choice([1024, 2048, 4096]) * (1 if context == 1 else 2)
    if model["attention"] == "dot":
        seq_len = min(seq_len, 2048)
    shards = across // context
    batch = max(1, tokens * mesh.get("tensor", 1) * context // seq_len) * shards
    plan: dict[str, Any] = {
        "mesh": mesh, "seq_len": seq_len, "global_batch": batch, "remat": weighted(rng, REMAT),
    }  # fmt: skip
    if rng.random() < 0.15:
        plan |= {"microbatches": 2, "global_batch": 2 * batch}
    if "tensor" in kind and rng.random() < 0.3:
        plan["rules"] = rng.choice([{"act_residual_seq": "tensor"}, {"act_embed": "tensor"}])
    if "expert" in kind:
        plan |= {"capacity_factor": 1.25}
    if rng.random() < 0.2:
        plan |= {"grad_dtype": "f32"}
    return plan
