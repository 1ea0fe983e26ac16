"""What each kind of remark in the notes of a measured run says of its model or its plan.

SETTING lists the remarks that set fields, each with the reason; `remarks_about.py` lists those that
change nothing. Whatever is in neither is unread, and listed. A pattern matches a whole sentence, a
whole clause or a whole half of one.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tpusim.maxtext.logical_axes import experts_over_fsdp
from tpusim.plan import DEFAULT_TILES, ONE_KERNEL, TWO_KERNELS
from tpusim.validation.measured_runs import MeasuredRun
from tpusim.validation.run_mesh import parse_mesh

Fields: TypeAlias = Mapping[str, Any]
Reader: TypeAlias = Callable[[re.Match[str], MeasuredRun], Fields]

DTYPE_SPELLINGS: Mapping[str, str] = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "f32": "f32",
    "fp32": "f32",
    "float32": "f32",
}
_DTYPE = "|".join(DTYPE_SPELLINGS)


@dataclass(frozen=True, slots=True)
class RemarkRule:
    """A kind of remark that sets fields of `Transformer` or `Plan`, by flat key.

    pattern: of the whole remark; upper and lower case are the same.
    reads: the fields that a remark sets.
    why: what the remark means.
    """

    pattern: str
    reads: Reader
    why: str


def _fixed(**fields: Any) -> Reader:
    return lambda _found, _run: fields


def _number(key: str, kind: type[int] | type[float] = int) -> Reader:
    return lambda found, _run: {key: kind(found[1])}


def _dtype(*keys: str) -> Reader:
    return lambda found, _run: dict.fromkeys(keys, DTYPE_SPELLINGS[found["dtype"].lower()])


def _shared_experts(found: re.Match[str], run: MeasuredRun) -> Fields:
    return {"shared_mlp": int(found["count"]) * int(found["width"] or run.d_ff)}


def _local_layers(found: re.Match[str], run: MeasuredRun) -> Fields:
    """Return the pattern with the number of global layers that is nearest to the remark's."""
    whole = run.n_layers - int(found["layers"])
    return {"window": int(found["window"]), "global_every": round(run.n_layers / max(whole, 1))}


def _global_heads(found: re.Match[str], _run: MeasuredRun) -> Fields:
    given = {"global_head_dim": found["width"], "global_kv_heads": found["heads"]}
    return {key: int(value) for key, value in given.items() if value}


def _wide_layers(_found: re.Match[str], run: MeasuredRun) -> Fields:
    """Return the layers that share K/V, which the notes count, and twice the width of the others.

    Where the notes count none, all layers are as wide.
    """
    sharing = re.search(r"(\d+) layers share K/V", run.notes)
    return {"wide_layers": int(sharing[1]), "wide_mlp": 2 * run.d_ff} if sharing else {}


def _latent(found: re.Match[str], _run: MeasuredRun) -> Fields:
    return {
        "kv_rank": int(found["kv"]),
        "q_rank": int(found["q"] or 0),
        "rope_dim": int(found["rope"]),
    }


def _placed(found: re.Match[str], run: MeasuredRun) -> Fields:
    """Return the torus dimensions, by their sizes, of the mesh axis of a size."""
    wanted = found["dims"].split("x")
    letters = [x for x, size in zip("xyz", run.topology.split("x"), strict=False) if size in wanted]
    axes = [axis for axis, size in parse_mesh(run).items() if size == int(found["size"])]
    return {"placement": dict.fromkeys(axes, letters)}


def _gathered_quantised(found: re.Match[str], run: MeasuredRun) -> Fields:
    over = _experts_over_fsdp(found, run) if "shard_exp_on_fsdp" in found[0] else {}
    return {"gather_dtype": run.dtype, **over}


def _experts_over_fsdp(_found: re.Match[str], run: MeasuredRun) -> Fields:
    return {"rules": {"expert": experts_over_fsdp(parse_mesh(run))}}


_ROUTING = (
    RemarkRule(r"(?:dropped, )?(?:cf|capacity factor) (\d+(?:\.\d+)?)",
               _number("capacity_factor", float),
               "slots over the even share; tokens that find none are dropped"),
    RemarkRule(r"dropless(?: \(.*\)| (?:megablox|tokamax)\b.*)?|megablox|tokamax GMM",
               _fixed(capacity_factor=0.0),
               "grouped matmuls over sorted tokens, as many as chose an expert"),
    RemarkRule(r"fsdp_shard_on_exp", _experts_over_fsdp,
               "MaxText's shard_exp_on_fsdp: fsdp shards the experts, not their embed dimension"),
    RemarkRule(r"tile \((\d+),(\d+),(\d+)\)",
               lambda found, _: {"expert_tiles": tuple(map(int, found.groups()))},
               "tiles of MaxText's grouped kernels: rows, embed, the experts' width"),
    RemarkRule(r"tile (\d+)",
               lambda found, _: {"expert_tiles": (*DEFAULT_TILES[:2], int(found[1]))},
               "the tile of the experts' width, the others as MaxText has them"),
    RemarkRule(r"\d+ token chunks", _fixed(expert_exchange="gather"),
               "MaxText splits tokens where experts gather them and scatter the results "
               "(moe.py: num_moe_token_chunks has no effect without use_ring_of_experts)"),
)  # fmt: skip
_LAYERS = (
    RemarkRule(r"scaled-MaxText family: relu MLP \(2 matrices\)",
               _fixed(activation="relu", parallel=True),
               "MaxText's own decoder block: attention and MLP read one norm, and are added "
               "together (its layers/models.py of 2023)"),
    RemarkRule(r"relu MLP \(2 matrices\)", _fixed(activation="relu"),
               "the MLP's function"),
    RemarkRule(r"SwiGLU|encoder with gated SiLU MLP", _fixed(activation="silu"),
               "the MLP's function"),
    RemarkRule(r"tied embedding(?: assumed)?|LM head taken as tied", _fixed(tied_embeddings=True),
               "the head is the table of embeddings"),
    RemarkRule(r"vocab padded to (\d+)", _number("vocab"), "rows of the table of embeddings"),
    RemarkRule(r"fused_qkv", _fixed(fused_qkv=True),
               "one matrix makes queries, keys and values"),
    RemarkRule(r"tff_quant(?: flags)?", _fixed(fused_qkv=False, quantisation_noise=""),
               "MLPerf 4.1's scripts for v6e (trillium-512.sh and -2048.sh), the only ones with "
               "this flag, set fused_qkv=false beside it. The letters stand for forward and both "
               "backward matmuls, quantised or not, in Paxml's quant_aqt_v2.py; gradients that are "
               "not have no noise. No source says what multiplies them: in bf16 the three runs "
               "would be 24 to 50 % too slow, so they stay int8"),
    RemarkRule(r"QK norm|Qwen3-style \(QK norm\)", _fixed(qk_norm=True),
               "norms of queries and keys"),
    RemarkRule(r"hybrid norm|pre and post norms", _fixed(post_norms=True),
               "norms after attention and MLP too (Levanter's hybrid norm: the printed number of "
               "parameters has two further norms a layer)"),
    RemarkRule(r"attention and MLP of a layer in parallel.*", _fixed(parallel=True),
               "both read one norm, and are added together"),
    RemarkRule(r"window (\d+)", _number("window"), "keys that a local layer sees"),
    RemarkRule(r"(\d+) local : 1 global(?: layers)?(?: \(.*\))?",
               lambda found, _: {"global_every": int(found[1]) + 1},
               "the last of each so many layers sees all keys"),
    RemarkRule(r"global head_dim (?P<width>\d+)(?: with (?P<heads>\d+) K/V heads)?",
               _global_heads, "layers that see all keys have other heads"),
    RemarkRule(r"K and V projections shared", _fixed(global_keys_as_values=True),
               "one projection makes keys and values, in layers that see all keys"),
    RemarkRule(r"(?:MatFormer-style )?per-layer embeddings \((\d+) x \d+\)",
               _number("layer_embed"), "each layer looks the tokens up in a table of its own"),
    RemarkRule(r"double-wide MLP", _wide_layers,
               "the MLP of the layers that share K/V is twice as wide (Gemma 4 E2B)"),
    RemarkRule(r"final logit cap (\d+)", _number("logit_cap", float),
               "a hyperbolic tangent bounds the logits"),
    RemarkRule(r"sliding window (?P<window>\d+) on (?P<layers>\d+) layers, (?P<whole>\d+) on \d+",
               _local_layers, "the others see all keys; taken as the nearest regular pattern"),
    RemarkRule(r"MLA \(qk \d+\+(?P<rope>\d+), v \d+, kv_lora (?P<kv>\d+), "
               r"(?:no q_lora|q_lora (?P<q>\d+))\)",
               _latent, "latent attention: ranks, and the rotated part of a head"),
)  # fmt: skip
_EXPERTS = (
    RemarkRule(r"(?:\d+ layers of which )?the first (?:is )?dense with d_ff (\d+)",
               lambda found, _: {"dense_layers": 1, "mlp": int(found[1])},
               "the first layer has an MLP and no experts"),
    RemarkRule(r"the first (\d+) layers (?:are )?dense with d_ff (\d+)",
               lambda found, _: {"dense_layers": int(found[1]), "mlp": int(found[2])},
               "the first layers have an MLP and no experts"),
    RemarkRule(r"(\d+) (?:routed )?experts of (\d+)",
               lambda found, _: {"experts": int(found[1]), "expert_mlp": int(found[2])},
               "number and width of the experts"),
    RemarkRule(r"(\d+) a token", _number("experts_per_token"), "experts of a token"),
    RemarkRule(r"(?P<count>\d+) shared(?: of (?P<width>\d+))?", _shared_experts,
               "experts that all tokens take, as wide as the others unless the remark says"),
    RemarkRule(r"shared expert (\d+)", _number("shared_mlp"), "an MLP that all tokens take"),
)  # fmt: skip
_KERNELS = (
    RemarkRule(r"sa_block (\d+)", lambda found, _: {"attention_block": [int(found[1])] * 2},
               "queries and keys of a block of the attention kernel (MaxText's sa_block_*)"),
    RemarkRule(r"split attention backward", _fixed(attention_backward=TWO_KERNELS),
               "one kernel for dQ and one for dK and dV"),
    RemarkRule(r"fused attention backward(?: and tile \d+)?",
               _fixed(attention_backward=ONE_KERNEL),
               "one kernel for all three gradients (MaxText's sa_use_fused_bwd_kernel)"),
)  # fmt: skip
_COMPILER = (
    RemarkRule(r"collective-matmul disabled", _fixed(collective_matmul=False),
               "the flag that turns collectives in matmuls off"),
)  # fmt: skip
_DTYPES = (
    RemarkRule(rf"(?:weights|weight_dtype) (?P<dtype>{_DTYPE})", _dtype("param_dtype"),
               "stored weights, and moments that no remark names"),
    RemarkRule(rf"(?P<dtype>{_DTYPE}) weights(?: from the .*)?", _dtype("param_dtype"),
               "stored weights, and moments that no remark names"),
    RemarkRule(rf"mu (?P<dtype>{_DTYPE})", _dtype("moment_dtype"), "Adam's first moment"),
    RemarkRule(rf"grad (?P<dtype>{_DTYPE})", _dtype("grad_dtype"), "gradients"),
    RemarkRule(rf"mu and grad (?P<dtype>{_DTYPE})|(?P<also>{_DTYPE}) Adam momentum and gradient",
               lambda found, _: dict.fromkeys(
                   ("moment_dtype", "grad_dtype"),
                   DTYPE_SPELLINGS[(found["dtype"] or found["also"]).lower()]),
               "Adam's first moment and gradients"),
    RemarkRule(rf"(?P<dtype>{_DTYPE}) optimizer state",
               _dtype("moment_dtype", "second_moment_dtype"), "both moments"),
    RemarkRule(r"quantised before the weight all-gather(?: \(.*\))?", _gathered_quantised,
               "weights of quantised matmuls travel quantised; shard_exp_on_fsdp beside it lays "
               "the experts over fsdp"),
    RemarkRule(r"fixed calibration", _gathered_quantised,
               "scales that no tensor has to be searched for: MaxText's kernels of experts gather "
               "weights that are quantised already (its kernels/megablox/ops.py)"),
)  # fmt: skip
_STEP = (
    RemarkRule(r"(?:layers )?not scanned|no scan|before scan and offload were added.*|"
               r"model yaml at this commit: remat llama \(.*, no scan, .*\)|"
               r"eqx\.filter_checkpoint on every block.*",
               _fixed(scan_layers=False),
               "each layer is written on its own: torchprime's checkpoint_module, a Python loop "
               "over blocks in marin's grug (experiments/grug, its model.py)"),
    RemarkRule(r"(\d+) accumulation steps(?: \(.*\))?", _number("microbatches"),
               "parts of the batch, one after the other"),
    RemarkRule(r"axis of (?P<size>\d+) = the (?:torus dimension of )?"
               r"(?P<dims>\d+(?:x\d+)*)(?: plane)?", _placed,
               "dimensions of the torus under an axis of the mesh"),
    RemarkRule(r"vocab tiling (\d+)", _number("vocab_tiles"), "pieces of the loss"),
)  # fmt: skip

SETTING: tuple[RemarkRule, ...] = (
    *_ROUTING,
    *_LAYERS,
    *_EXPERTS,
    *_KERNELS,
    *_COMPILER,
    *_DTYPES,
    *_STEP,
)
