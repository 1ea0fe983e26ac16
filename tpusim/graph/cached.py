"""A forward pass over a cache of keys and values: the step of a server.

The tokens of a step are those of many sequences, one after the other: one token of each sequence
that is being generated, and chunks of prompts. In the graph they are one long sequence of each
rank, a group of devices with sequences of its own. Causal attention kernels become kernels that
read the keys of each sequence from pages of a cache, and write those of the step's tokens into it.
The head multiplies the last token of each sequence only.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tpusim.graph.attention import Attention
from tpusim.graph.cached_attention import CACHED, LATENT_HEADS, CachedAttention
from tpusim.graph.contractions import Einsum
from tpusim.graph.early_gates import with_early_gates
from tpusim.graph.forward_pass import forward_pass
from tpusim.graph.function import function
from tpusim.graph.gather import Gather
from tpusim.graph.graph import LOSS, Graph
from tpusim.graph.linear_attention import LinearAttention
from tpusim.graph.ops import Op, Scan
from tpusim.graph.pointwise import Pointwise
from tpusim.graph.tensor import Tensor, TensorRole
from tpusim.graph.token_routing import TokenRouting

ROWS = "rows"
"""The dimension of the tokens whose logits are computed: the last one of each sequence."""

LOGITS, NEXT_TOKEN = "logits", "next_token"

DOT_OPERATIONS = 6
"""Operations of attention that is no kernel: keys and values are written to the cache, scores are
multiplied, their maximum and the sum of their exponentials are taken, and values are summed."""

SAMPLER_FLOPS = 10.0
"""Vector operations per logit of a sampler: its temperature, maximum, exponential and sum.
Assumed: counted from a softmax with a temperature; a greedy sampler has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheForm:
    """The cache of a step, and the rows of its logits.

    tokens: that the cache holds.
    rows: tokens whose logits are computed.
    dtype: of the cache.
    weight_dtype: of the matrices of the layers as they are stored; empty for that of all weights.
    sampled: a sampler reads the logits.
    fused: attention is a kernel; otherwise it is `DOT_OPERATIONS`.
    page_seconds: to start the copies of pages, per key.
    fused_experts: experts and the exchange of their rows are one kernel.
    expert_seconds: least time of that kernel for each expert of a device.
    on_chip: what passes between the operations of a layer with a kernel stays on the chip.
    """

    tokens: int
    rows: int
    dtype: str
    weight_dtype: str = ""
    sampled: bool = True
    fused: bool = True
    page_seconds: float = 0.0
    fused_experts: bool = False
    expert_seconds: float = 0.0
    on_chip: bool = True


def cached_pass(graph: Graph, form: CacheForm, load: Mapping[str, int]) -> Graph:
    """Return the forward pass of a graph over a cache, without its loss.

    graph: forward pass of the tokens of a step, [ranks, tokens of each].
    load: the size of each of `LOAD`.

    Non-causal attention, of an encoder, keeps no cache. Raise ModelError for a graph that has no
    output but the loss, see `forward_pass`.
    """
    graph = forward_pass(graph)
    sizes = {CACHED: form.tokens, ROWS: form.rows, **load}
    dims = (*graph.dims, *sizes.items())
    ops = tuple(made for op in graph.ops for made in _cached(op, form))
    ops = tuple(_with_narrow_weights(op, form.weight_dtype) for op in ops)
    return _with_last_rows(replace(graph, dims=dims, ops=ops), form)


def _cached(op: Op, form: CacheForm) -> Iterator[Op]:
    """Yield an operation over the cache: causal attention reads it, and all others are the same."""
    if isinstance(op, Scan):
        body = tuple(made for inner in op.body for made in _cached(inner, form))
        cached = any(isinstance(each, CachedAttention | LinearAttention) for each in body)
        on_chip = form.fused and form.on_chip and cached
        yield replace(op, body=with_early_gates(body), on_chip=on_chip)
    elif isinstance(op, Attention) and op.causal:
        yield _cached_attention(op, form)
    elif isinstance(op, LinearAttention):
        yield replace(op, state=_state_of_sequences(op))
    elif isinstance(op, TokenRouting):
        yield replace(op, fused=form.fused_experts, expert_seconds=form.expert_seconds)
    else:
        yield op


def _cached_attention(op: Attention, form: CacheForm) -> CachedAttention:
    batch, seq = op.query.dims[:2]
    prefix = op.name.removesuffix(op.name.rsplit("/", 1)[-1])

    def state(name: str, like: Tensor) -> Tensor:
        dims = (CACHED, *like.dims[2:])
        return Tensor(f"{prefix}{name}", dims, TensorRole.STATE, form.dtype)

    return CachedAttention(
        op.name,
        op.query,
        op.key.view((batch, seq, *op.key.dims[2:])),
        op.value.view((batch, seq, *op.value.dims[2:])),
        state("cached_keys", op.key),
        None if LATENT_HEADS in op.key.dims else state("cached_values", op.value),
        op.output,
        op.window,
        operations=1 if form.fused else DOT_OPERATIONS,
        page_seconds=form.page_seconds,
    )


def _state_of_sequences(op: LinearAttention) -> Tensor:
    """Return the states of linear attention of all sequences, in f32 as in `linear_states`."""
    batch, _, heads, value_width = op.value.dims
    dims = (batch, ROWS, heads, op.key.dims[-1], value_width)
    return Tensor(f"{op.name}_state", dims, TensorRole.STATE, "f32")


def _with_narrow_weights(op: Op, dtype: str) -> Op:
    """Return an operation whose matrix of a layer is stored in `dtype`, and read so."""
    if not dtype:
        return op
    if isinstance(op, Scan):
        return replace(op, body=tuple(_with_narrow_weights(inner, dtype) for inner in op.body))
    if not isinstance(op, Einsum) or LOGITS in op.output.name:
        return op
    lhs, rhs = (
        replace(t, dtype=dtype) if t.role is TensorRole.PARAM and len(t.dims) > 1 else t
        for t in (op.lhs, op.rhs)
    )
    return replace(op, lhs=lhs, rhs=rhs)


def _with_last_rows(graph: Graph, form: CacheForm) -> Graph:
    """Return a graph whose head reads the last token of each sequence, and samples the next one."""
    outputs = dict(graph.outputs)
    if LOGITS not in outputs or LOSS in outputs:
        return graph
    place = next((i for i, op in enumerate(graph.ops) if _is_head(op)), None)
    if place is None:
        return graph
    head = graph.ops[place]
    assert isinstance(head, Einsum)
    batch, seq, embed = head.lhs.dims
    given = replace(head.lhs, name=f"{head.lhs.name}_rows", dims=(batch, ROWS, embed))
    ids = Tensor("last_tokens", (batch, ROWS), TensorRole.INPUT, "s32")
    gather = Gather("last_rows", head.lhs, ids, given, seq)

    def after(tensor: Tensor) -> Tensor:
        if tensor.role is TensorRole.PARAM or seq not in tensor.dims:
            return tensor
        return tensor.view(tuple(ROWS if dim == seq else dim for dim in tensor.dims))

    tail: list[Op] = [replace(head, lhs=given, output=after(head.output))]
    for op in graph.ops[place + 1 :]:
        assert isinstance(op, Pointwise)
        inputs, made = (tuple(map(after, ts)) for ts in (op.inputs, op.outputs))
        tail.append(replace(op, inputs=inputs, outputs=made))
    logits = after(outputs[LOGITS])
    sampled = _sampler(logits) if form.sampled else ()
    named = tuple((name, after(tensor)) for name, tensor in graph.outputs)
    return replace(
        graph,
        ops=(*graph.ops[:place], gather, *tail, *sampled),
        outputs=(*named, *((op.name, op.outputs[0]) for op in sampled[-1:])),
    )


def _is_head(op: Op) -> bool:
    """Return True for the matmul that makes logits of tokens, not of whole examples."""
    return isinstance(op, Einsum) and op.output.short == LOGITS and len(op.lhs.dims) == 3


def _sampler(logits: Tensor) -> tuple[Pointwise, ...]:
    """Return the operations of a sampler: logits in f32, and the next token of each row.

    On v5e the cast of [512, 256000] logits and a maximum over them take 1.24 and 0.70 ms, two
    passes through HBM (profile of Gemma 2B, vllm-project/tpu-inference, pull request 3363).
    """
    wide = replace(logits, name="sampled_logits", dtype="f32")
    token = Tensor(NEXT_TOKEN, logits.dims[:-1], dtype="f32")
    cast = Pointwise(
        "cast_logits",
        (logits,),
        (wide,),
        1.0,
        keeps="",
        alone=True,
        function=function("cast"),
    )
    pick = Pointwise(
        "sample",
        (wide,),
        (token,),
        SAMPLER_FLOPS,
        over=(logits.dims[-1],),
        keeps="",
        function=function("sample"),
    )
    return (cast, pick)
