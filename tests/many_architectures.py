"""Random plans of every architecture: any rules over any dimensions that its models have."""

import random
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

from tpusim.graph import whole_dim
from tpusim.hardware import Slice
from tpusim.models import ARCHITECTURES, Architecture
from tpusim.models.contrastive_captioner import CaptionDecoder
from tpusim.models.pieces import MoE
from tpusim.models.self_attention import SelfAttention
from tpusim.models.two_towers import TextTower
from tpusim.models.vision_transformer import VisionTransformer
from tpusim.plan import DEFAULT_RULES, Plan

AnyCase: TypeAlias = tuple[Architecture, Plan, Slice]
Keys: TypeAlias = Callable[[random.Random], Mapping[str, Any]]

PODS = (
    ("v4", "2x2x1", 1), ("v4", "2x2x2", 1), ("v5e", "2x4", 1), ("v5e", "4x4", 2), ("v6e", "1x1", 1),
    ("v6e", "4x4", 1), ("7x", "2x2x2", 1), ("v3", "4x4", 1), ("v5p", "2x2x4", 1), ("v2", "4x4", 1),
)  # fmt: skip

AXES = ("data", "fsdp", "tensor", "context", "expert", "space", "other")
SEQUENCE_LENGTHS = (1, 64, 192, 1024)


def flag(rng: random.Random) -> bool:
    return rng.random() < 0.5


def _heads(rng: random.Random) -> dict[str, int]:
    heads = rng.choice([1, 2, 8])
    return {"heads": heads, "embed": heads * rng.choice([16, 64])}


def _transformer(rng: random.Random) -> dict[str, Any]:
    layers = rng.choice([1, 2, 4, 6])
    keys = dict(
        _heads(rng), layers=layers, mlp=rng.choice([5, 96, 512]), vocab=rng.choice([1, 100, 512]),
        kind=rng.choice(["decoder", "encoder"]), attention=rng.choice(["dot", "flash"]),
        gated=flag(rng), parallel=flag(rng), rotary=flag(rng), tied_embeddings=flag(rng),
        dropout=rng.choice([0.0, 0.1]), logit_cap=rng.choice([0.0, 30.0]), qk_norm=flag(rng),
    )  # fmt: skip
    more: list[dict[str, Any]] = [
        {}, {}, _experts(rng, layers), {"kv_heads": 1}, {"window": 32, "global_every": 2},
        {"kv_rank": 24, "q_rank": 12, "rope_dim": 8, "rotary": True, "qk_norm": False},
        {"layer_embed": 24}, {"qkv_bias": True, "mlp_bias": True, "norm": "layer"},
        {"positions": 1024, "rotary": False}, {"wide_layers": 1, "wide_mlp": 96},
    ]  # fmt: skip
    return keys | rng.choice(more)


def _experts(rng: random.Random, layers: int) -> dict[str, Any]:
    experts = rng.choice([1, 2, 4, 8])
    return {
        "experts": experts, "experts_per_token": rng.randint(1, experts),
        "expert_mlp": rng.choice([0, 64]), "shared_mlp": rng.choice([0, 32]),
        "dense_layers": rng.choice([0, layers - 1]),
    }  # fmt: skip


def _bert(rng: random.Random) -> dict[str, Any]:
    return dict(
        _heads(rng), layers=rng.choice([1, 3]), mlp=rng.choice([96, 512]), vocab=101,
        positions=1024, predictions=rng.choice([0, 20]), next_sentence=flag(rng),
        attention=rng.choice(["dot", "flash"]),
    )  # fmt: skip


def _encoder_decoder(rng: random.Random) -> dict[str, Any]:
    keys: dict[str, Any] = dict(
        _heads(rng), layers=rng.choice([2, 4]), decoder_layers=rng.choice([0, 2]), mlp=128,
        vocab=rng.choice([100, 512]), target_vocab=rng.choice([0, 60]), gated=flag(rng),
        target_len=rng.choice([0, 128]), tied_embeddings=flag(rng),
        attention=SelfAttention(kernel=rng.choice(["dot", "flash"]), rotary=flag(rng)),
    )  # fmt: skip
    if flag(rng):
        keys["moe"] = MoE(experts=4, experts_per_token=2, expert_every=rng.choice([1, 2]))
    return keys


def _evolved(rng: random.Random) -> dict[str, Any]:
    return {
        "encoder_blocks": rng.choice([1, 2]), "decoder_blocks": rng.choice([1, 3]), "embed": 64,
        "heads": rng.choice([2, 4]), "vocab": 100, "target_len": rng.choice([0, 64]),
    }  # fmt: skip


def _gnmt(rng: random.Random) -> dict[str, Any]:
    return {
        "layers": rng.choice([2, 4]), "decoder_layers": rng.choice([2, 3]),
        "units": rng.choice([64, 1024]), "vocab": 100, "target_len": rng.choice([0, 64]),
        "weights_after": flag(rng),
    }  # fmt: skip


def _vision(rng: random.Random) -> dict[str, Any]:
    return dict(
        _heads(rng), layers=rng.choice([1, 3]), mlp=128, image=64, patch=rng.choice([8, 16]),
        classes=rng.choice([10, 1000]), pool=rng.choice(["token", "mean", "probe"]),
        parallel=flag(rng), qk_norm=flag(rng), rms=flag(rng), scanned=flag(rng),
        attention=rng.choice(["dot", "flash"]), pre_norm=flag(rng), representation=flag(rng),
    )  # fmt: skip


def _mixer(rng: random.Random) -> dict[str, Any]:
    return {"layers": rng.choice([1, 3]), "embed": 64, "token_mlp": 32, "mlp": 128, "image": 64}


def _towers(rng: random.Random) -> dict[str, Any]:
    text = TextTower(**_heads(rng), layers=2, mlp=96, vocab=100, length=rng.choice([16, 64]),
                     pool=rng.choice(["last", "mean", "probe"]), causal=flag(rng))  # fmt: skip
    return {
        "image": VisionTransformer(**_vision(rng)), "text": text, "shared": 32,
        "loss": rng.choice(["softmax", "sigmoid"]), "frozen": rng.choice(["", "image", "text"]),
    }  # fmt: skip


def _captioner(rng: random.Random) -> dict[str, Any]:
    image = _vision(rng)
    text = CaptionDecoder(layers=2, cross_layers=rng.choice([1, 2]), embed=image["embed"], mlp=96,
                          heads=image["heads"], vocab=100, length=rng.choice([16, 64]))  # fmt: skip
    return {"image": VisionTransformer(**image), "text": text, "queries": rng.choice([4, 16])}


def _conformer(rng: random.Random) -> dict[str, Any]:
    return dict(
        _heads(rng), layers=rng.choice([1, 3]), frames=128, mel=16, codes=100,
        kernel=rng.choice([3, 32]), relative=flag(rng), subsample_channels=rng.choice([0, 16]),
    )  # fmt: skip


def _resnet(rng: random.Random) -> dict[str, Any]:
    norm = rng.choice(["batch", "device", "group", "frozen"])
    return {
        "blocks": rng.choice([(1, 1, 1, 1), (3, 4, 6, 3), (2, 1, 3, 2)]), "bottleneck": flag(rng),
        "width": rng.choice([8, 64]), "image": rng.choice([64, 224, (64, 96)]), "norm": norm,
        "preactivation": flag(rng), "space_to_depth": flag(rng), "classes": 10,
        "norm_group": rng.choice([0, 16]) if norm == "batch" else 0,
    }  # fmt: skip


def _ssd(rng: random.Random) -> dict[str, Any]:
    return {"image": rng.choice([300, 320]), "classes": 11, "space_to_depth": flag(rng)}


def _mask_rcnn(rng: random.Random) -> dict[str, Any]:
    return {"image": (192, 256), "classes": 11, "rois": 64, "mask_rois": 16}


def _unet3d(rng: random.Random) -> dict[str, Any]:
    return {"patch": 32, "filters": rng.choice([(8, 16, 32), (32, 64, 128, 256)])}


def _diffusion(rng: random.Random) -> dict[str, Any]:
    return {
        "latent": rng.choice([16, 64]), "channels": rng.choice([(32, 64), (320, 640, 1280, 1280)]),
        "blocks": rng.choice([1, 2]), "attention_levels": rng.choice([1, 2]), "head_dim": 16,
        "text_embed": 64, "flash_from": rng.choice([64, 4096]),
        "attention_from": rng.choice([0, 0, 1]), "attention_layers": (rng.choice([1, 2]),),
        "added": rng.choice([0, 96]),
    }  # fmt: skip


def _decoder(rng: random.Random) -> dict[str, Any]:
    return {
        "latent": rng.choice([8, 32]), "latent_channels": rng.choice([4, 16]),
        "channels": rng.choice([(64, 32), (64, 64, 32, 16)]), "blocks": rng.choice([1, 2]),
        "mixed_latents": flag(rng),
    }  # fmt: skip


def _single_stream(rng: random.Random) -> dict[str, Any]:
    return dict(
        _heads(rng), layers=rng.choice([1, 3]), refiners=rng.choice([0, 1, 2]), mlp=96,
        vector=rng.choice([32, 256]), time_hidden=48, latent=32, text=rng.choice([16, 64]),
        text_embed=48, attention=rng.choice(["dot", "flash"]), flash_from=rng.choice([64, 4096]),
    )  # fmt: skip


def _joint(rng: random.Random) -> dict[str, Any]:
    single = rng.choice([0, 0, 3])
    double = rng.choice([1, 2, 3])
    return {
        "double_layers": double, "single_layers": single, "heads": rng.choice([1, 4]),
        "head_dim": 16, "latent": 32, "text": rng.choice([16, 64]), "text_embed": 48, "pooled": 24,
        "guidance": flag(rng), "rotary": flag(rng), "qk_norm": flag(rng), "scanned": flag(rng),
        "text_ends": not single and double > 1 and flag(rng),
        "attention": rng.choice(["dot", "flash"]),
    }  # fmt: skip


def _video(rng: random.Random) -> dict[str, Any]:
    return dict(
        _heads(rng), layers=rng.choice([1, 3]), mlp=96, frames=rng.choice([1, 4]), height=8,
        width=16, text=rng.choice([16, 64]), text_embed=48, attention=rng.choice(["dot", "flash"]),
    )  # fmt: skip


def _metnet(rng: random.Random) -> dict[str, Any]:
    return {
        "context": 64, "target": rng.choice([64, 128]), "hidden": 24, "dilations": (1, 2, 4),
        "stacks": rng.choice([1, 2]), "up_channels": 32, "categories": 16, "in_channels": 8,
        "slices": 3, "lstm": 16, "up_blocks": rng.choice([1, 2]), "head": 48, "leads": 12,
        "lead_features": 32,
    }  # fmt: skip


MODEL_KEYS: Mapping[str, Keys] = {
    "transformer": _transformer, "bert": _bert, "encoder-decoder": _encoder_decoder,
    "evolved-transformer": _evolved, "gnmt": _gnmt, "vision-transformer": _vision,
    "mlp-mixer": _mixer, "two-towers": _towers, "conformer": _conformer, "resnet": _resnet,
    "ssd": _ssd, "mask-rcnn": _mask_rcnn, "unet3d": _unet3d, "diffusion-unet": _diffusion,
    "joint-transformer": _joint, "metnet-2": _metnet, "contrastive-captioner": _captioner,
    "video-transformer": _video, "image-decoder": _decoder,
    "single-stream-transformer": _single_stream,
}  # fmt: skip
"""Random fields of a model of each architecture, small enough for many plans."""


def any_model(rng: random.Random, architecture: str) -> Architecture:
    return ARCHITECTURES[architecture](**MODEL_KEYS[architecture](rng))


def any_plan(seed: int) -> AnyCase:
    """Return a plan of one architecture after the other; it may be one that is refused."""
    rng = random.Random(seed)
    names = tuple(ARCHITECTURES)
    model = any_model(rng, names[seed % len(names)])
    pod = Slice(*rng.choice(PODS))
    seq_len = rng.choice(SEQUENCE_LENGTHS) if model.reads_text else 0
    axes = [axis for axis in AXES if model.has_experts or axis != "expert"]
    mesh = _mesh(rng, pod, axes)
    sizes = model.graph(batch=1, seq_len=seq_len).sizes
    microbatches = rng.choice([1, 1, 1, 2, 4])
    keys = {
        "mesh": mesh, "seq_len": seq_len, "rules": _rules(rng, tuple(mesh), sizes),
        "microbatches": microbatches,
        "global_batch": microbatches * prod(mesh.values()) * rng.choice([1, 1, 2]),
    } | _options(rng, mesh, model)  # fmt: skip
    return model, Plan(**keys), pod


def _mesh(rng: random.Random, pod: Slice, names: Sequence[str]) -> dict[str, int]:
    """Return axes in any order, of which a few have stages or cross slices."""
    left = pod.devices // pod.num_slices
    axes = rng.sample(names, rng.randint(1, 4))
    if rng.random() < 0.1:
        axes[-1] = "stage"
    mesh = {}
    for axis in axes[1:]:
        mesh[axis] = rng.choice([size for size in range(1, left + 1) if left % size == 0])
        left //= mesh[axis]
    mesh[axes[0]] = left
    if pod.num_slices > 1:
        mesh[rng.choice(["dcn_data", "dcn_data", "dcn_fsdp", "dcn_stage"])] = pod.num_slices
    return dict(rng.sample(sorted(mesh.items()), len(mesh)))


def _rules(
    rng: random.Random, axes: Sequence[str], sizes: Mapping[str, int]
) -> dict[str, str | list[str]]:
    """Return rules that use each axis the defaults do not, and a few more."""
    free = [axis for axis in axes if not axis.endswith("stage")]
    usual = {axis for of in DEFAULT_RULES.values() for axis in of}
    dims = sorted({whole_dim(dim) for dim in sizes if not dim.startswith(("kv_", "other_"))})
    rules: dict[str, str | list[str]] = {}
    extra = rng.sample(free, min(len(free), rng.choice([0, 1, 1, 2, 3])))
    for axis in [axis for axis in free if axis not in usual] + extra:
        dim = rng.choice(dims)
        part, dot, name = dim.rpartition(".")
        key = f"{part}{dot}{rng.choice(['act_', 'act_', ''])}{name}"
        rules[key] = [*rules[key], axis] if key in rules and axis not in rules[key] else [axis]
    return rules


def _options(rng: random.Random, mesh: Mapping[str, int], model: Architecture) -> dict[str, Any]:
    """Return a few further keys, of any kind; most of them go with the model and each other."""
    wide, maybe = ["bf16", "f32"], ["", "bf16", "f32"]
    choices: Mapping[str, Sequence[Any]] = {
        "remat": ["full", "minimal", "dots", "none"], "scan_layers": [False],
        "save": [["q"], ["mlp_hidden", "out"]], "offload": [["layer_in"]],
        "optimizer": ["adam", "adafactor", "sgd", "momentum", "lars", "lamb", "muon"],
        "offload_optimizer": [True], "dtype": wide, "param_dtype": wide, "grad_dtype": wide,
        "reduce_dtype": maybe, "accumulator_dtype": maybe, "gather_dtype": maybe,
        "moment_dtype": wide, "logits_dtype": maybe, "matmul_dtype": ["bf16", "int8"],
        "lowering": ["xla", "ideal"], "style": ["plain", "maxtext"],
        "collectives": ["xla", "best"], "collective_matmul": [False],
        "gradient_reduction": ["per-microbatch", "per-step"], "vocab_tiles": [2, 4],
        "vocab_blocks": [2, 4], "loss_labels": ["mask", "index", "take"], "loop": ["synchronous"],
        "context_exchange": ["gather", "ring", "all-to-all"], "context_balanced": [False],
        "expert_exchange": ["all-to-all", "gather", "ring"],
        "weight_update_axes": [[axis] for axis in mesh],
        "schedule": ["gpipe", "1f1b", "zb-h1", "circular"],
    }  # fmt: skip
    odds = {"schedule": 0.5 if any(axis.endswith("stage") for axis in mesh) else 0.0}
    odds |= {} if model.has_layers else {"save": 0.02, "offload": 0.02}
    found = {k: rng.choice(v) for k, v in choices.items() if rng.random() < odds.get(k, 0.12)}
    uneven: Sequence[dict[str, float]] = ({}, {"capacity_factor": 1.25}, {"expert_skew": 0.5})
    return found | (rng.choice(uneven) if model.has_experts else {})
