"""Attention as a fused kernel, and its backward kernel."""

from dataclasses import dataclass, replace
from math import prod

from tpusim.base.phase import Phase
from tpusim.graph.tensor import Cotangents, DimSizes, MakeGradient, Tensor, gradient_of


@dataclass(frozen=True, slots=True)
class Attention:
    """A fused attention kernel: scores, mask, softmax and weighted sum, never written to HBM.

    The backward kernel reads the operands, the result and its gradient, and computes the scores
    again (Dao et al., FlashAttention, arXiv:2205.14135, section 3.1).

    query: [batch, seq, heads, head_dim].
    key, value: [batch, kv_seq, kv_heads, width]; values, and with them the result, may be of
        another width than queries and keys.
    output: result, [batch, seq, heads, width of the values].
    causal: a query sees no later keys.
    window: keys that a query sees; 0 for all.
    gradient: gradient of the result, for the backward kernel.
    gradients: gradients of query, key and value, for the backward kernel.
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
        """True for the backward kernel."""
        return self.gradient is not None

    def flops(self, sizes: DimSizes) -> int:
        """Return the model FLOPs: 2 b h q kv (d + d_v) forward, twice that backward.

        Causal kernels without a window count half. Scores are matmuls over the width d of queries
        and keys, the weighted sum has that of the values, d_v; backward, dQ and dK are over d, and
        dV and dP over d_v. A window of w keys counts w for each query.
        """
        queries = prod(sizes[dim] for dim in self.query.dims[:-1])
        widths = sizes[self.query.dims[-1]] + sizes[self.value.dims[-1]]
        keys = sizes[self.key.dims[1]]
        seen = min(keys, self.window) if self.window else keys
        whole = 2 * queries * seen * widths * (2 if self.backward else 1)
        return whole // 2 if self.causal and seen == keys else whole

    def transpose(self, cotangents: Cotangents, gradient: MakeGradient) -> "tuple[Attention, ...]":
        """Return the backward kernel."""
        return (
            replace(
                self,
                name=f"{self.name}/d",
                gradient=gradient_of(self.output, cotangents),
                gradients=(gradient(self.query), gradient(self.key), gradient(self.value)),
                phase=Phase.BACKWARD,
            ),
        )
