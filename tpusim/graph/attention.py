"""Attention as a fused kernel, and its backward kernel."""

from dataclasses import dataclass
from math import prod

from tpusim.graph.tensor import Sizes, Tensor
from tpusim.graph.transpose import Cotangents, MakeGradient, gradient_of
from tpusim.phase import Phase


@dataclass(frozen=True, slots=True)
class Attention:
    """A fused attention kernel: scores, mask, softmax and weighted sum, never written to HBM.

    `query` is [batch, seq, heads, head_dim]; `key` and `value` run over `kv_seq` and `kv_heads`.
    Values, and with them the result, may be of another width than queries and keys.
    The backward kernel reads the operands, the result and its gradient, and computes the scores
    again (Dao et al., FlashAttention, arXiv:2205.14135, section 3.1).
    """

    name: str
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    causal: bool
    window: int = 0
    gradient: Tensor | None = None
    gradients: tuple[Tensor, ...] = ()
    phase: Phase = Phase.FORWARD

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The operands; for the backward kernel also the result and its gradient."""
        operands = (self.query, self.key, self.value)
        return operands if self.gradient is None else (*operands, self.output, self.gradient)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The result, or the three gradients."""
        return self.gradients or (self.output,)

    @property
    def backward(self) -> bool:
        """Whether this is the backward kernel."""
        return self.gradient is not None

    def flops(self, sizes: Sizes) -> int:
        """Model FLOPs: 2 b h q kv (d + d_v) forward, twice that backward; causal ones at half.

        Scores are products over the width d of queries and keys, the weighted sum has that of the
        values, d_v; backward, dQ and dK are over d, and dV and dP over d_v. A window of w keys
        counts w for each query.
        """
        queries = prod(sizes[dim] for dim in self.query.dims[:-1])
        widths = sizes[self.query.dims[-1]] + sizes[self.value.dims[-1]]
        keys = sizes[self.key.dims[1]]
        seen = min(keys, self.window) if self.window else keys
        whole = 2 * queries * seen * widths * (2 if self.backward else 1)
        return whole // 2 if self.causal and seen == keys else whole

    def transpose(self, cotangents: Cotangents, gradient: MakeGradient) -> "tuple[Attention, ...]":
        """The backward kernel."""
        given = gradient_of(self.output, cotangents)
        made = (gradient(self.query), gradient(self.key), gradient(self.value))
        return (
            Attention(
                f"{self.name}/d",
                self.query,
                self.key,
                self.value,
                self.output,
                self.causal,
                self.window,
                given,
                made,
                Phase.BACKWARD,
            ),
        )
