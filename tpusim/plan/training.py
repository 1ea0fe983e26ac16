"""The training of a plan: the frame around forward and backward pass."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from tpusim.base.units import format_seconds
from tpusim.base.value_checks import check_names, check_positive, check_words, seconds
from tpusim.graph import Adapters, Remat
from tpusim.plan.optimizer import Optimizer
from tpusim.plan.pipeline import Pipeline

Loop: TypeAlias = Literal["asynchronous", "synchronous"]
LOOPS: tuple[Loop, ...] = get_args(Loop)
"""Training loops: what the host does while a step runs."""

GradientReduction: TypeAlias = Literal["per-microbatch", "per-step"]
GRADIENT_REDUCTIONS: tuple[GradientReduction, ...] = get_args(GradientReduction)
"""When the gradients of weights are summed over devices."""

LossLabels: TypeAlias = Literal["mask", "index", "take"]
LABELS: tuple[LossLabels, ...] = get_args(LossLabels)
"""How the loss finds the logits of the labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The batch of a step, its loss, what the backward pass saves, the update, and the loop.

    seq_len: tokens per example; 0 for models that read no text.
    global_batch: examples per step over all devices.
    microbatches: parts of the global batch that run one after the other. Their gradients are
        accumulated, and the optimizer runs once.
    gradient_reduction: sums of weight gradients over devices: `per-microbatch`, as the compiler
        does, or `per-step`. With `per-step`, as in programs that write their own collectives, each
        device accumulates its own terms in the accumulators' dtype, in the layout in which it read
        the weights, and they are summed after the last microbatch.
    vocab_tiles: parts of a device's tokens whose loss is computed one after the other. The logits
        of one part are in HBM at a time; the backward pass computes them again.
    vocab_blocks: blocks of the vocabulary whose loss is computed one after the other. A running sum
        of exponentials joins them; the backward pass computes the logits again.
    loss_labels: labels' logits by `mask` (one-hot), `take` (`take_along_axis`) or `index`
        (`logits[rows, labels]`). `take`, as in optax, and `index` gather from logits in f32; the
        gradient of `take` is a mask, and the gradient of `index` is a scatter in f32.
    input_s: time of the host for the batch of a step; no step is shorter. The host makes the next
        batch while a step runs.
    loop: `asynchronous`, or `synchronous` if the host reads each loss before the next step. The
        host of an asynchronous loop starts a step during the previous one; the devices of a
        synchronous loop wait for the host.
    trainable: name patterns of the weights to train, such as `head`, `wq` or `*scale`; all others
        are frozen. A frozen weight has no gradient, no optimizer state and no update. Without
        patterns and adapters all weights are trained; adapters always are.
    adapters: low-rank matrices beside the layers' own (LoRA); the model's weights are frozen,
        except for `trainable`.
    remat: the tensors kept for the backward pass, and their place.
    optimizer: the optimizer and the place of its state.
    pipeline: the schedule over stages.
    """

    seq_len: int = 0
    global_batch: int
    microbatches: int = 1
    gradient_reduction: GradientReduction = GRADIENT_REDUCTIONS[0]
    vocab_tiles: int = 1
    vocab_blocks: int = 1
    loss_labels: LossLabels = LABELS[0]
    input_s: float = 0.0
    loop: Loop = LOOPS[0]
    trainable: Sequence[str] = ()
    adapters: Adapters = field(default_factory=Adapters)
    remat: Remat = field(default_factory=Remat)
    optimizer: Optimizer = field(default_factory=Optimizer)
    pipeline: Pipeline = field(default_factory=Pipeline)

    def __post_init__(self) -> None:
        if self.seq_len or not isinstance(self.seq_len, int):
            check_positive("plan.seq_len", self.seq_len)
        for key in ("global_batch", "microbatches", "vocab_tiles", "vocab_blocks"):
            check_positive(f"plan.{key}", getattr(self, key))
        check_names("plan.trainable", self.trainable, '["head", "*scale"]')
        object.__setattr__(self, "trainable", tuple(self.trainable))
        object.__setattr__(self, "input_s", seconds("plan.input_s", self.input_s))
        check_words("plan", self)

    @property
    def microbatch(self) -> int:
        """Sequences that run at a time, over all devices; partitioning checks that they divide."""
        return max(self.global_batch // self.microbatches, 1)

    @property
    def reduces_once(self) -> bool:
        """True if gradients of several microbatches are added up before they are reduced."""
        return self.microbatches > 1 and self.gradient_reduction == GRADIENT_REDUCTIONS[1]

    def loss_phrases(self) -> Iterator[str]:
        """Yield the phrases of a plan's text about the loss that are not the default."""
        if self.vocab_tiles > 1:
            yield f"loss in {self.vocab_tiles} tiles"
        if self.vocab_blocks > 1:
            yield f"loss over {self.vocab_blocks} blocks of the vocabulary"
        if self.loss_labels != LABELS[0]:
            yield f"labels by {self.loss_labels}"

    def trained_phrases(self) -> Iterator[str]:
        """Yield the phrases of a plan's text about the weights that are trained, if not all."""
        if self.adapters.rank:
            beside = f" beside {', '.join(self.adapters.weights)}" * bool(self.adapters.weights)
            yield f"adapters of rank {self.adapters.rank}{beside}"
        if self.trainable:
            yield f"trains {', '.join(self.trainable)}"

    def saving_phrases(self) -> Iterator[str]:
        """Yield the phrases of a plan's text about what is saved, and where."""
        saved = f" + {', '.join(self.remat.save)}" if self.remat.save else ""
        yield f"remat {self.remat.policy}{saved}"
        if not self.remat.scan_layers:
            yield "layers not scanned"
        moved = [*self.remat.offload, *(["optimizer state"] if self.optimizer.offload else [])]
        if moved:
            yield f"on the host: {', '.join(moved)}"

    def loop_phrases(self) -> Iterator[str]:
        """Yield the phrases of a plan's text about input and loop that are not the default."""
        if self.input_s:
            yield f"input made in {format_seconds(self.input_s)}"
        if self.loop != LOOPS[0]:
            yield f"{self.loop} loop"
