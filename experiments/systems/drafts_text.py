"""Published runs of text systems: the model, plan and slice that stand for each.

Each row of `RUNS` predicts one row of the tables of published runs. What the source does not say is
an assumption, listed in `assumed`; none is fitted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tpusim as ts
from tpusim.models import Architecture, EvolvedTransformer, Gnmt, encoder_decoder, load

T5_TARGET = 114
"""Tokens of a target of T5's span corruption, of a source of 512 (arXiv:1910.10683, 3.1.4)."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A published run.

    measured: what was measured, in `unit`: seconds a step, or tokens or examples a second.
    tokens: tokens of an example that the throughput counts.
    assumed: what the source does not say.
    """

    model: Architecture
    plan: Mapping[str, Any]
    slice: tuple[str, str]
    measured: float
    unit: str
    tokens: int = 1
    assumed: str = ""

    def predicted(self) -> float:
        """Return the prediction, in `unit`."""
        plan = ts.Plan(**self.plan)
        step = ts.simulate(self.model, plan, ts.Slice(*self.slice)).step_time_s
        return step if self.unit == "s" else plan.global_batch * self.tokens / step


def _t5(name: str) -> Architecture:
    return encoder_decoder(name, target_len=T5_TARGET)


TWO_D = {
    "rules": {
        "act_batch": "x",
        "act_embed": "y",
        "embed": "x",
        "mlp": "y",
        "heads": "y",
        "kv_heads": "y",
        "vocab": "y",
        "act_mlp": "y",
        "act_heads": "y",
        "act_kv_heads": "y",
        "act_vocab": "y",
    },
    "optimizer": "adafactor",
    "remat": "full",
}
"""Weights and activations in two dimensions ("2D finalized", arXiv:2105.04663, section 5.1)."""

DATA = {"remat": "none", "grad_dtype": "f32"}

RUNS: Mapping[str, Run] = {
    "pathways-t5-base": Run(
        model=_t5("t5-base"),
        plan={"mesh": {"data": 32}, "global_batch": 128, "seq_len": 512, "optimizer": "adafactor",
              "remat": "none"},
        slice=("v3", "4x4"), measured=618000, unit="tokens/s", tokens=512 + T5_TARGET,
        assumed="data parallel, 128 x (512 + 114) tokens, both counted, no remat",
    ),
    "pathways-t5-11b": Run(
        model=_t5("t5-11b"),
        plan={"mesh": {"data": 32, "tensor": 16}, "global_batch": 128, "seq_len": 512,
              "optimizer": "adafactor", "remat": "full"},
        slice=("v3", "16x16"), measured=84800, unit="tokens/s", tokens=512 + T5_TARGET,
        assumed="16-way tensor parallel, 128 x (512 + 114) tokens, both counted, full remat",
    ),
    "switch-t5-base-cf-": Run(
        model=_t5("t5-base"),
        plan={"mesh": {"data": 32}, "global_batch": 2048, "seq_len": 512, "remat": "full",
              "optimizer": "adafactor"},
        slice=("v3", "4x4"), measured=1600, unit="examples/s",
        assumed="2048 examples of 512 + 114 tokens, full remat",
    ),
    "switch-switch-base-cf1.25": Run(
        model=_t5("switch-base"),
        plan={"mesh": {"expert": 32}, "global_batch": 2048, "seq_len": 512, "remat": "full",
              "optimizer": "adafactor", "capacity_factor": 1.25, "rules": {"embed": []}},
        slice=("v3", "4x4"), measured=910, unit="examples/s",
        assumed="2048 examples of 512 + 114 tokens, full remat; the mask of each example",
    ),
    "gshard-moe-128E-36L": Run(
        model=encoder_decoder("gshard-m4-36l-128e"),
        plan={"mesh": {"expert": 128}, "global_batch": 512, "seq_len": 1024, "remat": "full",
              "optimizer": "adafactor", "capacity_factor": 1.0, "rules": {"embed": []},
              "dtype": "f32", "grad_dtype": "f32"},
        slice=("v3", "8x8"), measured=1.493, unit="s",
        assumed="512 examples of 1024 + 1024 tokens, both counted; the mask of each example",
    ),
    "gshard-moe-512E-12L": Run(
        model=encoder_decoder("gshard-m4-12l-512e"),
        plan={"mesh": {"expert": 512}, "global_batch": 512, "seq_len": 1024, "remat": "none",
              "optimizer": "adafactor", "capacity_factor": 1.0, "rules": {"embed": []},
              "dtype": "f32", "grad_dtype": "f32"},
        slice=("v3", "16x16"), measured=0.305, unit="s",
        assumed="512 examples of 1024 + 1024 tokens, both counted; the mask of each example",
    ),
    "lamda-137B-v3-1024": Run(
        model=load("lamda-137b"),
        plan={"mesh": {"x": 32, "y": 64}, "global_batch": 256, "seq_len": 1024, **TWO_D},
        slice=("v3", "32x32"), measured=3.04, unit="s",
        assumed="256 x 1024 tokens, full remat, utilisation counts 6 N (4.06 s if 8 N)",
    ),
    "lingvo-128B-v3-256": Run(
        model=load("lingvo-128b"),
        plan={"mesh": {"x": 16, "y": 32}, "global_batch": 128, "seq_len": 1024, **TWO_D},
        slice=("v3", "16x16"), measured=7.282, unit="s", assumed="full remat",
    ),
    "lingvo-128B-v3-64": Run(
        model=load("lingvo-128b"),
        plan={"mesh": {"x": 8, "y": 16}, "global_batch": 16, "seq_len": 1024, **TWO_D},
        slice=("v3", "8x8"), measured=4.428, unit="s", assumed="full remat",
    ),
    "lingvo-41B-adam-v3-256": Run(
        model=load("lingvo-41b"),
        plan={"mesh": {"x": 16, "y": 32}, "global_batch": 256, "seq_len": 2048, **TWO_D,
              "optimizer": "adam"},
        slice=("v3", "16x16"), measured=9.745, unit="s", assumed="full remat",
    ),
    "meena-2.6B-v3-1024": Run(
        model=EvolvedTransformer(),
        plan={"mesh": {"data": 2048}, "global_batch": 16384, "seq_len": 128, "remat": "full",
              "optimizer": "adafactor"},
        slice=("v3", "32x32"), measured=1.0, unit="s",
        assumed="128 tokens of context and of response each; about 1 s is said",
    ),
    "gnmt-v0.7-v4-16": Run(
        model=Gnmt(),
        plan={"mesh": {"data": 8}, "global_batch": 4096, "seq_len": 30, **DATA},
        slice=("v4", "2x2x2"), measured=0.09873, unit="s",
        assumed="30 tokens, the mean length of padded batches of source and target",
    ),
    "gnmt-v0.7-v4-512": Run(
        model=Gnmt(),
        plan={"mesh": {"data": 256}, "global_batch": 8192, "seq_len": 30, **DATA},
        slice=("v4", "8x8x4"), measured=0.02111, unit="s",
        assumed="30 tokens, the mean length of padded batches of source and target",
    ),
}  # fmt: skip


def translation() -> Iterator[tuple[str, float, float]]:
    """Yield MLPerf's transformer rows: seconds a step as measured, and as predicted.

    566340 items an epoch and the batch give the steps; an item is a packed example of 256 tokens
    of source and of target (lingvo's WmtEnDeMlPerf, `FixateInputShape(..., 256, 256)`).
    """
    rows = (
        ("transformer-v0.7-v4-16", "v4", "2x2x2", 8, 512, 164.57),
        ("transformer-v0.7-v4-512", "v4", "8x8x4", 256, 2048, 8.24),
        ("transformer-v0.6-v3-32", "v3", "4x4", 32, 512, 187.6),
    )
    for name, chip, shape, devices, batch, epoch_s in rows:
        measured = epoch_s / (566340 / batch)
        plan = ts.Plan(mesh={"data": devices}, global_batch=batch, seq_len=256, **DATA)
        model = encoder_decoder("transformer-big-mlperf")
        yield name, measured, ts.simulate(model, plan, ts.Slice(chip, shape)).step_time_s


def main() -> None:
    """Print each run, measured and predicted."""
    for name, run in RUNS.items():
        try:
            found = run.predicted()
        except ts.TpusimError as error:
            print(f"{name:28} {error}")
            continue
        ratio = found / run.measured
        print(f"{name:28} {run.measured:12.5g} {found:12.5g} {run.unit:10} x{ratio:.2f}")
    for name, measured, found in translation():
        print(f"{name:40} {measured:.4g} s {found:.4g} s x{found / measured:.2f}")


if __name__ == "__main__":
    main()
