"""Reverse-mode differentiation: every weight gets its gradient, once, over the right dimensions."""

from dataclasses import replace
from math import prod

import pytest
from plans import small

from tpusim.base import Phase
from tpusim.graph import (
    POLICIES,
    Attention,
    Convolution,
    ConvolutionWindow,
    Einsum,
    Graph,
    Remat,
    Tensor,
    TensorRole,
    executed_flops,
    training_step,
    walk,
)
from tpusim.models import Transformer

MODELS = {
    "decoder": small(),
    "dot": small(attention="dot", kv_heads=2),
    "multi-query": small(kv_heads=1, gated=False),
    "parallel": small(parallel=True, tied_embeddings=True),
}


def step(model: Transformer, policy: str = "full") -> Graph:
    return training_step(model.graph(batch=4, seq_len=16), Remat(policy))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MODELS)
def test_each_weight_has_one_gradient_over_its_dimensions(name: str, policy: str) -> None:
    graph = step(MODELS[name], policy)
    weights = {p.tensor.name: p.tensor for p in graph.parameters}
    assert set(dict(graph.gradients)) == set(weights)
    for weight, gradient in graph.gradients:
        assert gradient.dims == weights[weight].dims
        assert gradient.primal == weight


@pytest.mark.parametrize("name", MODELS)
def test_backward_is_twice_forward(name: str) -> None:
    """Two transposes a product, each of its FLOPs; the kernel's backward counts twice likewise."""
    graph = step(MODELS[name], "none")
    flops = dict.fromkeys(Phase, 0)
    for op, trips in walk(graph.ops):
        flops[op.phase] += trips * executed_flops(op, graph.sizes)
    assert flops[Phase.BACKWARD] == 2 * flops[Phase.FORWARD] > 0
    assert graph.model_flops() <= 3 * flops[Phase.FORWARD]


@pytest.mark.parametrize("name", MODELS)
def test_model_flops_do_not_depend_on_what_is_recomputed(name: str) -> None:
    assert len({step(MODELS[name], policy).model_flops() for policy in POLICIES}) == 1


def test_a_residual_stream_adds_up_the_gradients_of_its_readers() -> None:
    ops = {op.name: op for op, _ in walk(step(small()).ops)}
    total = ops["layer/mid/dsum"]
    assert {t.primal for t in total.inputs} == {"layer/layer_out", "layer/mid"}
    assert total.outputs[0].primal == "layer/mid"


def test_ids_have_no_gradient() -> None:
    graph = step(small())
    assert "ids" not in {t.primal for op, _ in walk(graph.ops) for t in op.outputs}


def test_tied_embeddings_are_one_weight_with_one_gradient_of_two_shares() -> None:
    graph = step(small(tied_embeddings=True))
    assert [p.tensor.name for p in graph.parameters].count("embedding") == 1
    ops = {op.name: op for op, _ in walk(graph.ops)}
    assert len(ops["embedding/dsum"].inputs) == 2


def test_the_transposes_of_an_einsum_contract_what_the_other_lacked() -> None:
    x, w = Tensor("x", ("b", "i")), Tensor("w", ("i", "o"), TensorRole.PARAM)
    op = Einsum("p", x, w, Tensor("y", ("b", "o")))
    given = {"y": Tensor("dy", ("b", "o"), TensorRole.GRADIENT)}
    dx, dw = op.transpose(given, lambda t: replace(t, name=f"d({t.name})"))
    assert (dx.outputs[0].dims, dw.outputs[0].dims) == (("b", "i"), ("i", "o"))
    sizes = {"b": 3, "i": 5, "o": 7}
    assert {executed_flops(o, sizes) for o in (op, dx, dw)} == {2 * 3 * 5 * 7}


def test_a_convolution_and_its_transposes_multiply_alike() -> None:
    """2 x outputs x taps x channels (arXiv:1603.07285, relationship 13)."""
    x = Tensor("x", ("batch", "in_h", "in_w", "in_c"))
    k = Tensor("k", ("kh", "kw", "in_c", "out_c"), TensorRole.PARAM)
    y = Tensor("y", ("batch", "out_h", "out_w", "out_c"))
    windows = (
        ConvolutionWindow("in_h", "out_h", "kh", 2),
        ConvolutionWindow("in_w", "out_w", "kw", 2),
    )
    op = Convolution("conv", x, k, y, windows)
    given = {"y": replace(y, name="dy", role=TensorRole.GRADIENT)}
    ops = (op, *op.transpose(given, lambda t: replace(t, name=f"d({t.name})")))
    sizes = {
        "batch": 2, "in_h": 16, "in_w": 16, "out_h": 8, "out_w": 8, "in_c": 3, "out_c": 5,
        "kh": 3, "kw": 3,
    }  # fmt: skip
    assert {executed_flops(o, sizes) for o in ops} == {2 * (2 * 8 * 8 * 5) * (3 * 3) * 3}
    assert [o.outputs[0].dims for o in ops] == [y.dims, x.dims, k.dims]


@pytest.mark.parametrize(
    ("causal", "window", "keys"),
    [(False, 0, 64), (True, 0, 32), (False, 16, 16), (True, 16, 16), (True, 64, 32)],
)
def test_a_kernel_counts_the_keys_that_a_query_sees(causal: bool, window: int, keys: int) -> None:
    q = Tensor("q", ("batch", "seq", "heads", "head_dim"))
    k = Tensor("k", ("batch", "kv_seq", "kv_heads", "head_dim"))
    op = Attention("a", q, k, k, replace(q, name="o"), causal, window)
    sizes = {"batch": 2, "seq": 64, "kv_seq": 64, "heads": 4, "kv_heads": 1, "head_dim": 8}
    assert op.flops(sizes) == 4 * 2 * 64 * keys * 4 * 8
    (back,) = op.transpose({"o": replace(q, name="do")}, lambda t: replace(t, name=f"d{t.name}"))
    assert executed_flops(back, sizes) == 2 * op.flops(sizes)


def test_a_weight_of_a_scan_counts_once_a_layer() -> None:
    graph = small().graph(batch=1, seq_len=1)
    copies = {p.tensor.name: p.copies for p in graph.parameters}
    assert copies["layer/wq"] == 3
    assert copies["embedding"] == copies["final_norm_scale"] == 1
    sizes = graph.sizes
    by_hand = sum(p.copies * prod(sizes[d] for d in p.tensor.dims) for p in graph.parameters)
    assert graph.parameter_count == by_hand == 3 * (4 * 64 * 256 + 3 * 64 * 256 + 128) + 65600
