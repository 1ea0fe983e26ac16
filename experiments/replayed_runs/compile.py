"""Compile a measured training run in plain JAX at its real size, and keep the HLO.

    python compile.py mar-speed-1-2b-adamw --out programs

The name is that of a run file in tests/measured/runs. The training step is that of
experiments/compiled_memory/step.py with the file's plan. It needs `tpusim[xla]` and, per program,
one to five minutes of a core and 3 GB of memory.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "compiled_memory"))

import jax  # noqa: E402
from step import Step  # noqa: E402

import tpusim as ts  # noqa: E402
from tpusim.compiler_check.plan_check import flags_of  # noqa: E402
from tpusim.validation import measured_runs  # noqa: E402

RUNS = ROOT / "tests/measured/runs"
BATCH = ("dcn_data", "dcn_fsdp", "data", "fsdp")
LANES = 128


class Tied(Step):
    """A step whose logits use the embedding table."""

    def weights(self):
        """Return the weights without a head."""
        return {name: w for name, w in super().weights().items() if name != "head"}

    def loss(self, weights, ids):
        """Use the embedding table as the head."""
        return super().loss({**weights, "head": weights["embedding"].T}, ids)


def program(run):
    """Compile the step of a measured run."""
    given = run.given
    mesh = ts.xla.make_mesh(given.pod, given.plan.mesh)
    model = given.model
    if model.vocab % mesh.shape.get("tensor", 1):
        whole = LANES * mesh.shape["tensor"]
        model = model.replace(vocab=-(-model.vocab // whole) * whole)
    plan = given.plan.flat()
    plan["rules"] = {"act_batch": tuple(a for a in BATCH if a in mesh.shape), **plan["rules"]}
    tables = {"model": model.flat(), "plan": plan}
    step = (Tied if model.tied_embeddings else Step)(tables, mesh)
    state = step.state()
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    made = ts.xla.compile(
        step, state, step.ids(), slice=given.pod, mesh=mesh, donate=0, out_shardings=shardings,
        name=run.id, compiler_options=flags_of(given.plan),
    )  # fmt: skip
    return replace(made, data=without_folders(made.data))


def without_folders(data):
    """Return HLO that names files of this project and of jax relative to their roots."""
    for folder in (ROOT, Path(jax.__file__).parents[1]):
        data = data.replace(f'"{folder}/'.encode(), b'"')
    return data


def main():
    """Compile the run named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("id")
    parser.add_argument("--out", type=Path, default=HERE / "programs")
    given = parser.parse_args()
    runs = {run.id: run for run in measured_runs(RUNS)}
    made = program(runs[given.id])
    given.out.mkdir(parents=True, exist_ok=True)
    made.save(given.out / f"{given.id}.hlo.gz")
    print(made)


if __name__ == "__main__":
    main()
