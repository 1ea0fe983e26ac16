"""The compiler that a plan assumes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tpusim.base.value_checks import check_flag, check_names, check_words
from tpusim.plan.attention_kernel import AttentionKernel

Lowering: TypeAlias = Literal["xla", "ideal"]
Collectives: TypeAlias = Literal["xla", "best"]
Style: TypeAlias = Literal["plain", "maxtext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """The choices of the compiler.

    lowering: `xla`, today's compiler, or `ideal`, a perfect one.
    collectives: the algorithm that the compiler picks (`xla`), or the fastest (`best`).
    style: `plain` JAX or `maxtext`: the programs that the `xla` lowering imitates.
    collective_matmul: the compiler may fuse collectives into matmuls, as rings.
        `--xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000` switches this off in the compiler.
    without_passes: passes of the lowering to switch off; `observed` stands for all that only
        compiled programs showed. `--explain passes` lists them.
    attention_kernel: the blocks and backward kernels of fused attention.
    """

    lowering: Lowering = "xla"
    collectives: Collectives = "xla"
    style: Style = "plain"
    collective_matmul: bool = True
    without_passes: Sequence[str] = ()
    attention_kernel: AttentionKernel = field(default_factory=AttentionKernel)

    def __post_init__(self) -> None:
        check_words("plan.compiler", self)
        check_flag("plan.compiler.collective_matmul", self.collective_matmul)
        check_names("plan.compiler.without_passes", self.without_passes)
        object.__setattr__(self, "without_passes", tuple(self.without_passes))

    def __str__(self) -> str:
        best = "" if self.collectives == "xla" else f", {self.collectives} collectives"
        without = f" without {', '.join(self.without_passes)}" if self.without_passes else ""
        rings = "" if self.collective_matmul else " without collective matmuls"
        return f"lowering {self.lowering} ({self.style}){rings}{without}{best}"
