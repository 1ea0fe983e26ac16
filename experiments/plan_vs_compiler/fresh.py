"""The designed sample about steps: plans of dense and expert decoders that nobody has looked at.

Nine plans of each kind, on v4 to 7x in turn, 16 to 256 devices. The batch is one to eight sequences
a shard, or what fits into HBM; of plans of which one sequence does not fit, layers are left out. A
third is sealed (`sealed_sample.py`).
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from memory import CHIPS, MESHES, ONE_SLICE, SAVED, STYLED, language
from sample import SLICES
from sealed_sample import Drawn, KindTwin, SealedSample

from tpusim import simulate

SEQUENCES = (1, 2, 4, 8)
FEWEST_LAYERS = 2
SMALL = (*ONE_SLICE[16], *ONE_SLICE[32])
LARGE = tuple(name for size in (64, 128, 256) for name in SLICES[size] if " x " not in name)
EXPERTS = {"fsdp expert": 3, "fsdp": 2, "fsdp tensor": 1}


def _sized(twin: KindTwin) -> KindTwin | None:
    """Return the twin with a batch, and of its layers as many, that fit into HBM."""
    times = random.Random(f"batch of {twin.number}").choice(SEQUENCES)
    layers = twin.model["layers"]
    while layers >= FEWEST_LAYERS:
        sized = replace(twin, model=twin.model | {"layers": layers}).with_batch(times)
        if simulate(*sized.arguments()).fits:
            return sized
        times, layers = (times // 2, layers) if times > 1 else (1, layers // 2)
    return None


def _decoder(
    rng: random.Random, place: int, pods: tuple[str, ...] = SMALL,
    meshes: Mapping[str, int] = MESHES, **keys: Any,
) -> Drawn:  # fmt: skip
    """Return a decoder on a slice of the chip whose turn it is. keys: of the plan."""
    turn = place if place < len(CHIPS) else rng.randrange(len(CHIPS))
    pod = rng.choice([name for name in pods if name.startswith(CHIPS[turn])])
    return language(rng, pod, meshes, **keys)


def _remat(policy: str, pods: tuple[str, ...] = SMALL) -> Callable[[random.Random, int], Drawn]:
    return lambda rng, place: _decoder(rng, place, pods, remat=policy)


def _tied(rng: random.Random, place: int) -> Drawn:
    return _with_model(_decoder(rng, place), tied_embeddings=True)


def _with_model(drawn: Drawn, **keys: Any) -> Drawn:
    pod, model, plan, flags = drawn
    return pod, model | keys, plan, flags


def _tiles(rng: random.Random, drawn: Drawn) -> Drawn:
    """Return a plan whose loss is computed in tiles of a large vocabulary."""
    pod, model, plan, flags = _with_model(drawn, vocab=rng.choice((128256, 256000, 262144)))
    return pod, model, plan | {"vocab_tiles": rng.choice((2, 4, 8, 16))}, flags


def _tiled(remat: str, pods: tuple[str, ...] = SMALL) -> Callable[[random.Random, int], Drawn]:
    return lambda rng, place: _tiles(rng, _decoder(rng, place, pods, remat=remat))


def _tied_tiles(rng: random.Random, place: int) -> Drawn:
    return _tiles(rng, _tied(rng, place))


def _saves(rng: random.Random, place: int) -> Drawn:
    drawn = _decoder(rng, place, save=rng.choice(SAVED))
    return _with_model(drawn, attention="flash")


def _saves_in_tiles(rng: random.Random, place: int) -> Drawn:
    return _tiles(rng, _saves(rng, place))


def _maxtext(rng: random.Random, place: int) -> Drawn:
    chip, flags = STYLED[place % len(STYLED)]
    pod = rng.choice([name for name in SMALL if name.startswith(chip)])
    remat = rng.choice(("full", "minimal"))
    return *language(rng, pod, MESHES, style="maxtext", remat=remat)[:3], flags


def _maxtext_in_tiles(rng: random.Random, place: int) -> Drawn:
    return _tiles(rng, _maxtext(rng, place))


def _experts(rng: random.Random, place: int) -> Drawn:
    return _routed(rng, _decoder(rng, place, SMALL, EXPERTS, capacity_factor=1.25))


def _routed(rng: random.Random, drawn: Drawn) -> Drawn:
    """Return a plan with experts, a multiple of the axis that shards them."""
    mlp = min(drawn[1]["mlp"], 4096)
    keys = {"experts": rng.choice((8, 16)), "experts_per_token": rng.choice((2, 2, 4))}
    return _with_model(drawn, mlp=mlp, **keys)


def _sorted(rng: random.Random, place: int) -> Drawn:
    return _routed(rng, _decoder(rng, place, SMALL, EXPERTS))


def _saved_experts(rng: random.Random, place: int) -> Drawn:
    keys: dict[str, Any] = {"save": rng.choice(SAVED[:2])} if place % 2 else {"remat": "minimal"}
    drawn = _routed(rng, _decoder(rng, place, SMALL, EXPERTS, capacity_factor=1.25, **keys))
    return _with_model(drawn, attention="flash")


KINDS: Mapping[str, Callable[[random.Random, int], Drawn]] = {
    "remat full": _remat("full"),
    "remat minimal": _remat("minimal"),
    "remat none": _remat("none"),
    "tied": _tied,
    "tiles": _tiled("full"),
    "tiles, tied": _tied_tiles,
    "tiles, minimal": _tiled("minimal"),
    "saved names": _saves,
    "saved names, tiles": _saves_in_tiles,
    "MaxText": _maxtext,
    "MaxText, tiles": _maxtext_in_tiles,
    "experts": _experts,
    "experts, sorted": _sorted,
    "experts, saved": _saved_experts,
    "64 to 256 devices": _remat("full", LARGE),
    "64 to 256 devices, minimal": _remat("minimal", LARGE),
    "64 to 256 devices, tiles": _tiled("full", LARGE),
}
"""Kinds, and the function that draws a place of each."""

SAMPLE = SealedSample("fresh", 1, KINDS, _sized)
