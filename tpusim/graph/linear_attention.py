"""Linear attention as a fused kernel, and its backward kernel."""

from dataclasses import dataclass, replace
from math import prod

from tpusim.base.phase import Phase
from tpusim.graph.tensor import Cotangents, DimSizes, MakeGradient, Tensor, gradient_of


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """A fused kernel of linear attention: a recurrence over tokens on a state of each head.

    The state S, [key width, value width], decays and takes up one key and value a token, and a
    query reads it: `S_t = a_t S_{t-1} + k_t v_t^T`, `o_t = S_t^T q_t`. The delta rule replaces what
    the state has for a key, with the strength b_t: `S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t
    v_t^T` (Gated DeltaNet, arXiv:2412.06464, equation 10; with a decay for each channel of the key,
    Kimi Delta Attention, arXiv:2510.26692, equation 1). Kernels compute it in chunks of tokens, by
    matmuls (arXiv:2406.06484, section 3.2; arXiv:2412.06464, section 3.3).

    query, key: [batch, seq, heads or key heads, width]; values share the heads of queries and keys
        in groups where they have more.
    value: [batch, seq, heads, value width].
    output: result, of the dimensions of the values.
    decay: logarithm of the decays, [batch, seq, heads], with the width of the keys where each
        channel has its own; None for constants.
    strength: of the delta rule, [batch, seq, heads]; None for attention without it.
    state: what the tokens before have left, [batch, heads, width, value width], which the kernel
        reads and writes in place; None where a sequence begins. See `with_linear_states`.
    gradient: gradient of the result, for the backward kernel.
    gradients: gradients of the operands, for the backward kernel.
    """

    name: str
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    decay: Tensor | None = None
    strength: Tensor | None = None
    state: Tensor | None = None
    gradient: Tensor | None = None
    gradients: tuple[Tensor, ...] = ()
    phase: Phase = Phase.FORWARD

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """Queries, keys, values, and the decays and strengths that there are."""
        gates = (gate for gate in (self.decay, self.strength) if gate is not None)
        return (self.query, self.key, self.value, *gates)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The operands and the state; for the backward kernel also the gradient of the result."""
        others = (tensor for tensor in (self.state, self.gradient) if tensor is not None)
        return (*self.operands, *others)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The result, or the gradients; a state is written where it is read."""
        return self.gradients or (self.output,)

    @property
    def backward(self) -> bool:
        """True for the backward kernel."""
        return self.gradient is not None

    def flops(self, sizes: DimSizes) -> int:
        """Return the model FLOPs, those of the recurrence: 4 b s h d d_v, or 6 with the delta rule.

        A token adds the product of its key and value to the state, and reads it with its query; the
        delta rule reads it with the key too. Twice that backward. What the form in chunks computes
        besides takes time (`costs.linear_attention`), but is no FLOPs of the model.
        """
        products = 2 if self.strength is None else 3
        tokens = prod(sizes[dim] for dim in self.value.dims)
        whole = 2 * products * tokens * sizes[self.key.dims[-1]]
        return 2 * whole if self.backward else whole

    def transpose(
        self, cotangents: Cotangents, gradient: MakeGradient
    ) -> "tuple[LinearAttention, ...]":
        """Return the backward kernel, which computes the states of the chunks again."""
        return (
            replace(
                self,
                name=f"{self.name}/d",
                gradient=gradient_of(self.output, cotangents),
                gradients=tuple(gradient(t) for t in self.operands if t.differentiable),
                phase=Phase.BACKWARD,
            ),
        )
