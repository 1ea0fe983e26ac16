"""Sums of products that are scattered each on its own, where rings hide that."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tpusim.graph import Einsum, Pointwise
from tpusim.partition.fuse import unfused
from tpusim.partition.template import Buffer, Calc, Comm, Node
from tpusim.program import CollectiveKind

Woven = Callable[[Comm, Calc], bool]
"""Whether the scatter of a product's result would be woven into the product."""


@dataclass(frozen=True, slots=True)
class _Sum:
    """A scattered sum of products: its collective, the products, and what adds them up."""

    scatter: Comm
    products: tuple[Calc, ...]
    adding: Calc


def scattered_apart(nodes: Sequence[Node], woven: Woven, buffers: dict[str, Buffer]) -> list[Node]:
    """The nodes with the terms of a sum scattered before they are added up.

    A partitioner decides product by product, and what it does not make a ring is added up first:
    the gradients of gate's and up's input are two rings, those of Q's, K's and V's one scatter
    (language models with norms sharded by tokens, v6e 4x4 and v5p 4x4x8, libtpu 0.0.42.1). The
    parts are added to `buffers`.
    """
    result = list(nodes)
    for one in [one for one in _sums(nodes) if all(woven(one.scatter, c) for c in one.products)]:
        result = list(_apart(result, one, buffers))
    return result


def _sums(nodes: Sequence[Node]) -> Iterator[_Sum]:
    """Sums of products that a scatter follows and nothing else reads."""
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        for key in node.reads:
            readers.setdefault(key, []).append(node)
    calcs = [node for node in nodes if isinstance(node, Calc)]
    makers = {key: unfused(calc)[0] for calc in calcs for key in unfused(calc)[0].writes}
    for node in nodes:
        if not isinstance(node, Comm) or node.kind is not CollectiveKind.REDUCE_SCATTER:
            continue
        host = next((calc for calc in calcs if node.reads[0] in calc.writes), None)
        adding = unfused(host)[1:] if host and len(readers[node.reads[0]]) == 1 else ()
        if len(adding) != 1 or not _adds(adding[0]):
            continue
        products = tuple(makers[key] for key in adding[0].reads if key in makers)
        alone = all(len(readers.get(key, ())) <= 1 for key in adding[0].reads)
        if alone and len(products) == len(adding[0].reads) and all(map(_multiplies, products)):
            yield _Sum(node, products, adding[0])


def _adds(calc: Calc) -> bool:
    return isinstance(calc.op, Pointwise) and calc.op.linear


def _multiplies(calc: Calc) -> bool:
    return isinstance(calc.op, Einsum)


def _apart(nodes: Sequence[Node], one: _Sum, buffers: dict[str, Buffer]) -> Iterator[Node]:
    """The nodes with a scatter behind each product, and the sum of the parts in their place."""
    products = {calc.name: calc for calc in one.products}
    (made,) = one.scatter.writes
    parts: list[str] = []
    for node in nodes:
        if isinstance(node, Calc) and node.name in products:
            product = products[node.name]
            (term,) = product.writes
            parts.append(f"{term}@{'+'.join(one.scatter.axes)}")
            buffers[parts[-1]] = replace(buffers[made], dtype=buffers[term].dtype)
            yield product
            yield replace(
                one.scatter, name=f"{one.scatter.kind}/{parts[-1]}", reads=(term,),
                writes=(parts[-1],), maker=product.op.name,
            )  # fmt: skip
        elif node is one.scatter:
            local = buffers[made].local.split()
            split = tuple((dim, axes) for dim, axes in local.items() if axes)
            yield replace(one.adding, split=split, reads=tuple(parts), writes=(made,))
        else:
            yield node
