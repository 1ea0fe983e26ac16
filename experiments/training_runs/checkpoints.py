"""Published times of checkpoints beside simulated ones, with what was assumed.

python experiments/training_runs/checkpoints.py
"""

from collections.abc import Iterator
from dataclasses import dataclass

import tpusim as ts
from tpusim.base.units import format_bytes
from tpusim.models import Transformer
from tpusim.training import CheckpointCost, Checkpoints, checkpoint_cost

DIFFUSION = ts.models.load("stable-diffusion-v2-base")
LLAMA = ts.models.load("llama3.1-405b")
BLOOM = Transformer(
    name="176B", layers=70, embed=14336, mlp=57344, heads=112, head_dim=128, vocab=250880,
    gated=False, tied_embeddings=True,
)  # fmt: skip
DENSE_800B = Transformer(
    name="800B", layers=172, embed=16384, mlp=81920, heads=128, kv_heads=8, head_dim=128,
    vocab=128256,
)  # fmt: skip
DENSE_1T = Transformer(
    name="1T", layers=173, embed=18432, mlp=90112, heads=144, kv_heads=16, head_dim=128,
    vocab=128256,
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A published time of a checkpoint.

    published: its seconds, before and after tuning where there are two.
    storage: bandwidth of the storage for the whole job, of each prediction; None for no limit.
    assumed: what the source does not say.
    """

    what: str
    published: tuple[float, ...]
    model: ts.models.Architecture
    slice: tuple[str, str]
    mesh: dict[str, int]
    storage: tuple[str | None, ...]
    assumed: str
    in_sample: bool = False

    def costs(self) -> Iterator[CheckpointCost]:
        """Yield what the checkpoint takes with each storage."""
        pod = ts.Slice(*self.slice)
        seq_len = 2048 if self.model.reads_text else 0
        plan = ts.Plan(mesh=self.mesh, global_batch=pod.chips, seq_len=seq_len)
        step = ts.simulate(self.model, plan, pod)
        for storage in self.storage:
            yield checkpoint_cost(step, Checkpoints(every=1, storage=storage))


_IN_PRACTICE = ("200 GB/s", "50 GB/s")
"""What storage gives a whole job in practice (VAST's blog, secondary)."""

SOURCES = (
    Source(
        "Stable Diffusion's U-Net, 8 v5p chips (MLPerf Training v4.1)", (9.47,), DIFFUSION,
        ("v5p", "2x2x2"), {"data": 8}, (None,), "one host writes", in_sample=True,
    ),
    Source(
        "the same, 256 v6e chips (v5.0)", (9.1,), DIFFUSION, ("v6e", "16x16"), {"data": 256},
        (None,), "one host writes", in_sample=True,
    ),
    Source(
        "BLOOM, 2.3 TB (secondary)", (40.0,), BLOOM, ("v4", "4x4x12"), {"fsdp": 192}, (None,),
        "the 48 hosts that its 384 GPUs had, as hosts of v4",
    ),
    Source(
        "405B by Orbax (arXiv:2605.23066, secondary)", (173.0,), LLAMA, ("v5p", "8x8x16"),
        {"fsdp": 1024}, (None, *_IN_PRACTICE), "256 hosts; storage without limit, 200 and 50 GB/s",
    ),
    Source(
        "800B, median write (VAST's blog, secondary)", (216.0,), DENSE_800B,
        ("v5p", "8x16x16"), {"fsdp": 2048}, _IN_PRACTICE, "512 hosts; storage of 200 and 50 GB/s",
    ),
    Source(
        "Ling-1T, before and after tuning (secondary)", (269.0, 30.0), DENSE_1T, ("v5p", "8x16x16"),
        {"fsdp": 2048}, _IN_PRACTICE, "a dense 1T on 512 hosts; storage of 200 and 50 GB/s",
    ),
)  # fmt: skip


def cells(source: Source) -> tuple[str, ...]:
    """Return the cells of a source's row."""
    found = list(source.costs())
    published = f"{', '.join(f'{each:.3g}' for each in source.published)} s"
    predicted = ", ".join(f"{each.seconds:.3g}" for each in found)
    bounds = ", ".join(dict.fromkeys(each.bound for each in found))
    assumed = source.assumed + "; in sample" * source.in_sample
    size = format_bytes(found[0].total_bytes)
    return source.what, published, f"{predicted} s", bounds, f"{size}; {assumed}"


def main() -> None:
    """Print the table."""
    print("| source | published | predicted | bound | assumed |")
    print("| --- | ---: | ---: | --- | --- |")
    for source in SOURCES:
        print(f"| {' | '.join(cells(source))} |")


if __name__ == "__main__":
    main()
