"""The designed sample about HBM: plans by kind, of which some do not fit.

The first places of a kind are as drawn; those of `FILLED` have as large a batch as fills a part of
HBM that is drawn too, from half to twice what there is, so that verdicts are judged as well. A
third is sealed (`sealed_sample.py`).
"""

import random
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from sample import LAYERS, SLICES, mesh_of, slice_of, weighted
from sealed_sample import Drawn, KindTwin, SealedSample

from tpusim import simulate

FILLED = {4: (0.5, 0.85), 5: (0.8, 1.0), 6: (0.9, 1.15), 7: (0.9, 1.3), 8: (1.2, 2.0)}
"""By place, the least and the largest part of HBM that a plan is to fill."""

LARGEST = 2.0
"""Times the HBM that a plan of the sample needs at most."""

ONE_SLICE = {
    8: ("v4:2x2x2", "v5e:2x4", "v5p:2x2x2", "v6e:2x4"),
    16: ("v4:2x2x4", "v5e:4x4", "v5p:2x2x4", "v6e:4x4", "7x:2x2x2"),
    32: ("v4:2x4x4", "v5e:4x8", "v5p:2x4x4", "v6e:4x8", "7x:2x2x4"),
}  # fmt: skip
CHIPS = ("v4", "v5e", "v5p", "v6e", "7x")
SEVERAL = ("v4:2x2x4 x 2", "v5e:4x4 x 2", "v5p:2x2x4 x 2", "v6e:4x4 x 2", "7x:2x2x2 x 2",
           "v5e:4x4 x 4", "v6e:8x8 x 2")  # fmt: skip
STYLED = (("v4", "maxtext"), ("v5e", "maxtext"), ("v5p", "maxtext"), ("v5p", "sparsecore"),
          ("v6e", "sparsecore"), ("v6e", "maxtext"), ("7x", ""))  # fmt: skip
MESHES = {"fsdp": 6, "fsdp tensor": 3, "data fsdp": 3, "data": 1}
VOCABULARIES = {32000: 3, 50304: 1, 128256: 3, 262144: 2}
SAVED = (["context"], ["context", "q_rotary", "k_rotary", "v"], ["mlp_out"], ["mlp_hidden"],
         ["q", "k", "v"], ["mid"], ["context", "mlp_out"], ["attn_norm", "mlp_norm"])  # fmt: skip


def _sized(twin: KindTwin) -> KindTwin:
    """Return the twin with the batch of its place."""
    rng, place = random.Random(f"batch of {twin.number}"), twin.number % 100
    if place in FILLED:
        return _filled(twin, rng.uniform(*FILLED[place]))
    return twin.with_batch(rng.choice((1, 2, 4)))


def _filled(twin: KindTwin, share: float) -> KindTwin:
    """Return the twin with about the largest batch that needs no more than a share of HBM.

    What a plan needs is nearly linear in its batch.
    """
    wanted = share * twin.pod.chip.hbm_usable_bytes
    low, high = 1, 2
    while high < 4096 and _needed(twin.with_batch(high)) <= wanted:
        low, high = high, 2 * high
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if _needed(twin.with_batch(middle)) <= wanted else (low, middle)
    return twin.with_batch(low)


def _needed(twin: KindTwin) -> float:
    return float(simulate(*twin.arguments()).hbm_peak_bytes)


def _pod(rng: random.Random) -> str:
    return rng.choice(ONE_SLICE[weighted(rng, {8: 2, 16: 5, 32: 3})])


def _transformer(rng: random.Random) -> dict[str, Any]:
    embed = weighted(rng, {1024: 1, 2048: 4, 4096: 4, 8192: 1})
    heads = embed // 128
    model: dict[str, Any] = {
        "name": "twin", "layers": rng.choice((2, 4, 8, 16)), "embed": embed,
        "mlp": rng.choice((4 * embed, 7 * embed // 2)), "heads": heads,
        "kv_heads": min(heads, rng.choice((8, heads))), "head_dim": 128,
        "vocab": weighted(rng, VOCABULARIES), "attention": rng.choice(("flash",) * 4 + ("dot",)),
    }  # fmt: skip
    if rng.random() < 0.25:
        model["tied_embeddings"] = True
    return model


def language(rng: random.Random, pod: str, meshes: Mapping[str, int], **keys: Any) -> Drawn:
    """Return a decoder on a slice. meshes: kinds of mesh, keys: further ones of the plan."""
    mesh = None
    while mesh is None:
        mesh = mesh_of(rng, weighted(rng, dict(meshes)).split(), slice_of(pod))
    model = _transformer(rng)
    seq_len = 2048 if model["attention"] == "dot" else rng.choice((2048, 4096, 8192))
    plan = {"mesh": mesh, "seq_len": seq_len, "remat": "full", **keys}
    plan["global_batch"] = shards(mesh) * keys.get("microbatches", 1)
    return pod, model, plan, ""


def shards(mesh: Mapping[str, int]) -> int:
    """Return the parts into which a mesh cuts the batch."""
    return prod(size for axis, size in mesh.items() if axis not in ("tensor", "context", "spatial"))


def _maxtext(rng: random.Random, place: int) -> Drawn:
    chip, flags = STYLED[place % len(STYLED)]
    pod = rng.choice([name for name in ONE_SLICE[16] + ONE_SLICE[32] if name.startswith(chip)])
    remat = rng.choice(("full", "minimal"))
    drawn = language(rng, pod, MESHES, style="maxtext", remat=remat)
    return *drawn[:3], flags


def _slices(rng: random.Random, place: int) -> Drawn:
    return language(rng, SEVERAL[place % len(SEVERAL)], MESHES)


def _pods(rng: random.Random, place: int) -> Drawn:
    names = [name for size in (64, 128, 256) for name in SLICES[size] if " x " not in name]
    names = [name for name in names if name.startswith(CHIPS[place % len(CHIPS)])]
    return language(rng, rng.choice(names), MESHES)


def _experts(rng: random.Random, place: int) -> Drawn:
    meshes = {"fsdp expert": 3, "fsdp": 2} if place % 3 else {"fsdp expert": 3, "fsdp tensor": 1}
    pod, model, plan, flags = language(rng, _pod(rng), meshes)
    model |= {"experts": rng.choice((8, 16)), "experts_per_token": 2}
    model["mlp"] = min(model["mlp"], 4096)
    sorts: tuple[dict[str, Any], ...] = ({"capacity_factor": 1.25}, {}, {"expert_buffer": 1.5})
    return pod, model, plan | sorts[place % 3], flags


def _pipelines(rng: random.Random, place: int) -> Drawn:
    pod = rng.choice([name for name in ONE_SLICE[16] if name.startswith(CHIPS[place % 5])])
    stages = rng.choice((2, 4))
    tensor = rng.choice((1, 1, 2))
    mesh = {"stage": stages, "fsdp": 16 // stages // tensor, "tensor": tensor}
    mesh = {axis: size for axis, size in mesh.items() if size > 1}
    model = _transformer(rng) | {"layers": 8, "attention": "flash"}
    count = stages * rng.choice((1, 2))
    plan = {
        "mesh": mesh, "seq_len": 2048, "remat": "full", "schedule": "circular",
        "microbatches": count, "global_batch": count * mesh["fsdp"],
        "virtual_stages": rng.choice((1, 2)),
    }  # fmt: skip
    return pod, model, plan, ""


def _translation(rng: random.Random, place: int) -> Drawn:
    pod = _pod(rng)
    model: dict[str, Any] = {
        "name": rng.choice(("t5-base", "t5-large")),
        "layers": rng.choice((4, 8)),
    }
    kinds = {"data": 2, "fsdp": 3, "fsdp tensor": 2}
    plan: dict[str, Any] = {"seq_len": 512}
    if place % 3 == 1:
        model = {"name": "switch-base", "layers": 4, "moe": {"experts": 16}}
        kinds, plan = {"fsdp expert": 1}, {"seq_len": 512, "capacity_factor": 1.25}
    model["target_len"] = rng.choice((128, 512))
    return _other(rng, pod, model, kinds, 4, **plan)


def _other(
    rng: random.Random, pod: str, model: dict[str, Any], kinds: Mapping[str, int], each: int,
    **keys: Any,
) -> Drawn:  # fmt: skip
    """Return another model than a decoder. each: the fewest examples of a device."""
    mesh = mesh_of(rng, weighted(rng, dict(kinds)).split(), slice_of(pod))
    assert mesh is not None
    return pod, model, {"mesh": mesh, "global_batch": each * shards(mesh), **keys}, ""


def _vision(rng: random.Random, place: int) -> Drawn:
    whole: dict[str, Any] = {"layers": rng.choice((4, 8))}
    models: tuple[dict[str, Any], ...] = (
        {
            "name": rng.choice(("vit-b/16", "vit-l/16")),
            "pool": rng.choice(("token", "mean")),
            **whole,
        },
        {"name": rng.choice(("mixer-b/16", "mixer-l/16")), **whole},
        {"name": "siglip-b/16", "image": whole, "text": whole},
    )
    kinds = {"data": 2, "fsdp": 2, "fsdp tensor": 1}
    return _other(rng, _pod(rng), models[place % 3], kinds, 16, remat=rng.choice(("full", "none")))


def _speech(rng: random.Random, place: int) -> Drawn:
    model = {
        "name": "conformer-xl", "layers": rng.choice((4, 8)), "frames": rng.choice((512, 1024)),
        "kernel": rng.choice((5, 32)),
    }  # fmt: skip
    return _other(rng, _pod(rng), model, {"data": 2, "fsdp": 3, "fsdp tensor": 2}, 4)


def _convolutions(rng: random.Random, place: int) -> Drawn:
    models: tuple[tuple[dict[str, Any], int], ...] = (
        ({"architecture": "unet3d", "patch": 64, "filters": (32, 64, 128, 256)}, 8),
        ({"name": "stable-diffusion-v2-base", "channels": (320, 640), "blocks": 1,
          "attention_levels": 1}, 8),
        ({"architecture": "metnet-2", "context": 64, "target": 64, "slices": 2, "stacks": 1,
          "dilations": (1, 2, 4), "in_channels": 64, "up_channels": 256, "up_blocks": 2,
          "head": 1024}, 4),
    )  # fmt: skip
    model, each = models[place % 3]
    pod = rng.choice(ONE_SLICE[8])
    mesh = {"data": 8} if place < 6 else {"fsdp": 8}
    return pod, model, {"mesh": mesh, "global_batch": 8 * each, "optimizer": "momentum"}, ""


def _offloads(rng: random.Random, place: int) -> Drawn:
    names = rng.choice((["layer_in"], ["layer_in", "context"], ["layer_in", "mlp_out"]))
    return language(rng, _pod(rng), MESHES, offload=names)


def _int8(rng: random.Random, place: int) -> Drawn:
    keys: dict[str, Any] = {"matmul_dtype": "int8"}
    if place % 3 == 1:
        keys["gather_dtype"] = "int8"
    if place % 3 == 2:
        keys["matmul_dtype_dw"] = "bf16"
    return language(rng, _pod(rng), MESHES, **keys)


def _muon(rng: random.Random, place: int) -> Drawn:
    return language(rng, _pod(rng), MESHES, optimizer="muon")


def _labels(rng: random.Random, place: int) -> Drawn:
    labels = ("index", "take", "mask")[place % 3]
    pod, model, plan, flags = language(rng, _pod(rng), MESHES, loss_labels=labels)
    model["vocab"] = rng.choice((32000, 128256, 262144))
    model["tied_embeddings"] = rng.random() < 0.5
    if rng.random() < 0.3:
        model["logit_cap"] = 30.0
    return pod, model, plan, flags


def _tiles(rng: random.Random, place: int) -> Drawn:
    keys: dict[str, Any] = {"vocab_tiles": rng.choice((2, 4, 8))} if place % 3 else {}
    if place % 3 != 1:
        keys["loss_dtype"] = "f32"
    pod, model, plan, flags = language(rng, _pod(rng), MESHES, **keys)
    model["vocab"] = rng.choice((128256, 262144))
    return pod, model, plan, flags


def _saves(rng: random.Random, place: int) -> Drawn:
    keys: dict[str, Any] = {"save": rng.choice(SAVED)}
    if rng.random() < 0.3:
        keys["microbatches"] = 2
    pod, model, plan, flags = language(rng, _pod(rng), MESHES, **keys)
    return pod, model | {"attention": "flash"}, plan, flags


def _unscanned(rng: random.Random, place: int) -> Drawn:
    remat = ("full", "none", "full", "minimal")[place % 4]
    pod, model, plan, flags = language(rng, _pod(rng), MESHES, scan_layers=False, remat=remat)
    return pod, model | {"layers": rng.choice((2, LAYERS, 6))}, plan, flags


def _contexts(rng: random.Random, place: int) -> Drawn:
    meshes = {"fsdp context": 3, "data context": 1}
    pod, model, plan, flags = language(rng, _pod(rng), meshes)
    exchange = rng.choice(("gather", "gather", "all-to-all"))
    plan |= {"seq_len": plan["mesh"]["context"] * rng.choice((4096, 8192, 16384))}
    return pod, model | {"attention": "flash"}, plan | {"context_exchange": exchange}, flags


def _remats(rng: random.Random, place: int) -> Drawn:
    remat = ("minimal", "dots", "none")[place % 3]
    return language(rng, _pod(rng), MESHES, remat=remat)


KINDS: Mapping[str, Callable[[random.Random, int], Drawn]] = {
    "MaxText": _maxtext,
    "several slices": _slices,
    "64 to 256 devices": _pods,
    "experts": _experts,
    "circular pipelines": _pipelines,
    "encoder-decoders": _translation,
    "vision": _vision,
    "Conformer": _speech,
    "U-Nets and MetNet-2": _convolutions,
    "offloading": _offloads,
    "int8": _int8,
    "Muon": _muon,
    "without a scan": _unscanned,
    "long context": _contexts,
    "remat": _remats,
    "labels": _labels,
    "tiles and f32 losses": _tiles,
    "saved names": _saves,
}
"""Kinds, and the function that draws a place of each."""

SAMPLE = SealedSample("memory", 2, KINDS, _sized)
