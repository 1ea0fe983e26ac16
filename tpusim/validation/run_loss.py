"""The loss of a measured run: whole, or over blocks of the vocabulary."""

from collections.abc import Iterator
from typing import Any

from tpusim.base.divisors import divisor_from
from tpusim.models import Transformer
from tpusim.validation.measured_runs import MeasuredRun

STREAMED_SINCE = "2026-03"
"""Year and month from which Levanter streams its loss.

Its kernels/pallas/fused_cross_entropy_loss/xla.py then computes logits in f32 for one block of the
vocabulary after another, and adds the gradients of the labels by index. Runs of February 2026 whose
notes name a fused loss are too fast for that.
"""

BLOCK, BLOCK_ON_V5P = 8192, 16384
"""The largest block of the vocabulary, and that on v5p (its tuned_block_sizes.py)."""


def loss_of(run: MeasuredRun, model: Transformer) -> dict[str, Any]:
    """Return the keys of the plan for a loss that the run's framework streams; none if it is whole.

    The vocabulary is divided into equal blocks; the framework pads the last.
    """
    if run.framework != "levanter" or run.date < STREAMED_SINCE or model.tied_embeddings:
        return {}
    largest = BLOCK_ON_V5P if run.chip == "v5p" else BLOCK
    blocks = divisor_from(model.vocab, -(-model.vocab // largest))
    return {"vocab_blocks": blocks, "loss_dtype": "f32", "loss_labels": "index"}


def loss_notes(run: MeasuredRun, model: Transformer) -> Iterator[str]:
    """Yield a note for a loss that is streamed."""
    if keys := loss_of(run, model):
        yield (
            f"the loss is computed in f32 over {keys['vocab_blocks']} blocks of the vocabulary, as "
            f"{run.framework} does since {STREAMED_SINCE}"
        )
