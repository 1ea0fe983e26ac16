"""GSPMD's dense transformers on v3: utilisation, weak scaling, and pipelines against 2-D sharding.

    python experiments/gspmd_dense/run.py

prints the two tables of README.md, and with `--compile` that of the compiled programs, which needs
tpusim[xla].
"""

import sys
from collections.abc import Iterator, Mapping

import tpusim as ts
from tpusim.base.errors import TpusimError
from tpusim.models import Transformer

WIDE: Mapping[str, tuple[int, int, str]] = {
    "64B": (32, 8192, "8x8"),
    "128B": (64, 8192, "8x16"),
    "256B": (32, 16384, "16x16"),
    "512B": (64, 16384, "16x32"),
    "1T": (128, 16384, "32x32"),
}
"""Layers, width and slice: weights per core are the same, and so is the work at one batch."""

BATCHES = (128, 512)
DEEP = "6.5B"
DEEP_SLICE, DEEP_BATCH = "4x8", 64
STAGES, MICROBATCHES, SHARDS = (2, 4, 8), (8, 16, 32), (2, 4, 8)


def wide(name: str) -> Transformer:
    """Return a model of `WIDE`."""
    layers, embed, _ = WIDE[name]
    return _dense(name, layers, embed, 8 * embed)


def deep() -> Transformer:
    """Return the model of which pipelines are tried."""
    return _dense(DEEP, 32, 4096, 16384)


def _dense(name: str, layers: int, embed: int, mlp: int) -> Transformer:
    return Transformer(
        name=name,
        layers=layers,
        embed=embed,
        mlp=mlp,
        heads=max(embed // 64, 32) if mlp > 4 * embed else embed // 128,
        head_dim=128,
        vocab=32000,
        gated=False,
        activation="relu",
        rotary=False,
        attention="dot",
        tied_embeddings=True,
    )


def plan(mesh: Mapping[str, int], batch: int, **keys: object) -> ts.Plan:
    """Return a plan with 2-D sharding: activations between layers are sharded over both axes."""
    rules = {"act_embed": "tensor"}
    given = {"mesh": mesh, "rules": rules, "seq_len": 1024, "global_batch": batch}
    return ts.Plan(**given, optimizer="adafactor", **keys)


def best_mesh(model: Transformer, pod: ts.Slice, batch: int) -> ts.PlanResult:
    """Return the result of the fastest 2-D mesh that fits."""
    sides = (1 << power for power in range(2, 7))
    meshes = [{"fsdp": side, "tensor": pod.devices // side} for side in sides]
    square = [mesh for mesh in meshes if 1 <= mesh["tensor"] // mesh["fsdp"] <= 4]
    results = [ts.simulate(model, plan(mesh, batch), pod) for mesh in square]
    return min((r for r in results if r.fits), key=lambda result: result.step_time_s)


def slice_of(name: str) -> ts.Slice:
    """Return the slice of a model of `WIDE`."""
    return ts.Slice("v3", WIDE[name][2])


def weak_scaling(batch: int) -> Iterator[tuple[str, ts.PlanResult]]:
    """Yield the fastest 2-D mesh of each size."""
    for name in WIDE:
        yield name, best_mesh(wide(name), slice_of(name), batch)


def best_pipeline() -> ts.PlanResult:
    """Return the result of the fastest pipeline of the deep model on its slice."""
    pod, model = ts.Slice("v3", DEEP_SLICE), deep()
    results = []
    for stages in STAGES:
        for shards in SHARDS:
            mesh = {"stage": stages, "fsdp": pod.devices // stages // shards, "tensor": shards}
            for count in MICROBATCHES:
                given = plan(mesh, DEEP_BATCH, microbatches=count, schedule="circular")
                try:
                    results.append(ts.simulate(model, given, pod))
                except TpusimError:
                    continue
    return min((r for r in results if r.fits), key=lambda result: result.step_time_s)


def tables() -> Iterator[str]:
    """Yield the lines of the two tables."""
    yield "| sequences | weights | cores | mesh | step | growth | MFU | HFU |"
    yield "| ---: | --- | ---: | --- | ---: | ---: | ---: | ---: |"
    for batch in BATCHES:
        results = list(weak_scaling(batch))
        first = results[0][1].step_time_s
        for name, result in results:
            mesh = " x ".join(str(size) for size in result.plan.mesh.values())
            yield (
                f"| {batch} | {name} | {result.pod.devices} | {mesh} | {result.step_time_s:.1f} s "
                f"| {result.step_time_s / first - 1:+.0%} | {result.mfu:.1%} | {result.hfu:.1%} |"
            )
    yield ""
    flat, piped = best_mesh(deep(), ts.Slice("v3", DEEP_SLICE), DEEP_BATCH), best_pipeline()
    yield "| 6.5B on 64 cores | mesh | step | over 2-D |"
    yield "| --- | --- | ---: | ---: |"
    for what, result in (("2-D sharding", flat), ("best pipeline", piped)):
        mesh = ", ".join(f"{axis} {size}" for axis, size in result.plan.mesh.items() if size > 1)
        over = result.step_time_s / flat.step_time_s - 1
        yield f"| {what} | {mesh} | {result.step_time_s:.2f} s | {over:+.0%} |"


def compiled() -> Iterator[str]:
    """Yield the lines of the table of plans beside the programs that the TPU compiler makes."""
    small, large = (best_mesh(wide(name), slice_of(name), BATCHES[0]) for name in ("64B", "1T"))
    flat, piped = best_mesh(deep(), ts.Slice("v3", DEEP_SLICE), DEEP_BATCH), best_pipeline()
    yield "| weights | cores | mesh | plan | program | plan less program | HBM |"
    yield "| --- | ---: | --- | ---: | ---: | ---: | ---: |"
    for model, result in (
        (wide("64B"), small),
        (wide("1T"), large),
        (deep(), flat),
        (deep(), piped),
    ):
        found = ts.check(model, result.plan, result.pod).comparison
        mesh = ", ".join(f"{axis} {size}" for axis, size in result.plan.mesh.items() if size > 1)
        step = found.plan_step_s / found.program_step_s - 1
        hbm = found.plan_hbm_bytes / found.program_hbm_bytes - 1
        yield (
            f"| {model.name} | {result.pod.devices} | {mesh} | {found.plan_step_s:.2f} s "
            f"| {found.program_step_s:.2f} s | {step:+.1%} | {hbm:+.1%} |"
        )


if __name__ == "__main__":
    print("\n".join(compiled() if "--compile" in sys.argv[1:] else tables()))
