"""The fused attention kernel of a plan: its blocks, and the kernels of its backward pass."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from tpusim.base.errors import PlanError
from tpusim.base.value_checks import check_words, is_list
from tpusim.program import ATTENTION_BLOCK, SPLASH

BackwardKernels: TypeAlias = Literal["two-kernels", "one-kernel"]
TWO_KERNELS: BackwardKernels
ONE_KERNEL: BackwardKernels
TWO_KERNELS, ONE_KERNEL = get_args(BackwardKernels)
AttentionLibrary: TypeAlias = Literal["splash", "tokamax", "flash"]
LANES = 128
"""A kernel's blocks are multiples of the lanes of a register."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKernel:
    """The fused attention kernel.

    block: queries and keys per step of the kernel. Large blocks cost less for each score, and
        compute more of the scores that a causal mask hides. MaxText: `sa_block_q`, `sa_block_kv`.
    block_backward: the same in the backward pass; empty for `block`. MaxText: `sa_block_q_dkv`,
        `sa_block_kv_dkv`.
    backward: `two-kernels` (one for dQ, one for dK and dV) or `one-kernel`. Both of two kernels
        compute the scores. MaxText: `sa_use_fused_bwd_kernel`.
    library: `splash` (JAX), `tokamax`, or `flash` (the older kernel of JAX, as torch_xla calls it).
        `splash` has two operations of the vector unit or more for each one of `tokamax`, which
        takes base 2, estimates the logits, and steps over the blocks that a causal mask hides
        (MaxText's `use_tokamax_splash`). A step of the forward kernel of `flash` has the blocks of
        two sequences, and a step of its dQ kernel twice the queries.
    """

    block: Sequence[int] = (ATTENTION_BLOCK, ATTENTION_BLOCK)
    block_backward: Sequence[int] = ()
    backward: BackwardKernels = "two-kernels"
    library: AttentionLibrary = SPLASH

    def __post_init__(self) -> None:
        check_words("plan.attention_kernel", self)
        _check_block("plan.attention_kernel.block", self.block)
        if self.block_backward not in ((), []):
            _check_block("plan.attention_kernel.block_backward", self.block_backward)
        object.__setattr__(self, "block", tuple(self.block))
        object.__setattr__(self, "block_backward", tuple(self.block_backward))

    def block_of(self, *, backward: bool) -> tuple[int, int]:
        """Return the queries and keys of a block of the forward or the backward pass."""
        queries, keys = (backward and self.block_backward) or self.block
        return queries, keys

    @property
    def fused(self) -> bool:
        """True if one kernel computes all gradients."""
        return self.backward == ONE_KERNEL

    def phrases(self) -> Iterator[str]:
        """Yield phrases of a plan's text: blocks and kernels other than the default."""
        if self.block != (ATTENTION_BLOCK, ATTENTION_BLOCK) or self.block_backward:
            forward, backward = (self.block_of(backward=late) for late in (False, True))
            apart = "" if forward == backward else f", backward {backward[0]} x {backward[1]}"
            yield f"attention in blocks of {forward[0]} x {forward[1]}{apart}"
        if self.fused:
            yield "one backward kernel of attention"
        if self.library != SPLASH:
            yield f"attention by {self.library.capitalize()}"


def _check_block(where: str, value: Any) -> None:
    """Raise PlanError unless the value is a pair of multiples of 128."""
    sides = list(value) if is_list(value) else []
    whole = all(isinstance(one, int) and not isinstance(one, bool) for one in sides)
    if len(sides) != 2 or not whole or any(one < 1 or one % LANES for one in sides):
        raise PlanError(
            f"{where} is {value!r}; write the queries and the keys of a block, multiples of "
            f"{LANES}, such as [1024, 512]"
        )
