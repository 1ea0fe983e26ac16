"""The optimizer of a plan."""

from dataclasses import dataclass

from tpusim.base.value_checks import check_flag, check_word

OPTIMIZERS = ("adam", "adafactor", "sgd", "momentum", "lars", "muon")


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """The optimizer and the place of its state.

    name: `adam`, `adafactor`, `sgd`, `momentum` (SGD with it), `lars` (momentum with a rate for each
        weight, arXiv:1708.03888) or `muon`. Muon makes the momentum of the layers' matrices
        orthogonal (Newton-Schulz, arXiv:2502.16982); embedding, head and vectors have Adam.
    offload: the moments stay on the host, and pass through HBM at the update.
    """

    name: str = "adam"
    offload: bool = False

    def __post_init__(self) -> None:
        check_word("plan.optimizer.name", self.name, OPTIMIZERS)
        check_flag("plan.optimizer.offload", self.offload)
