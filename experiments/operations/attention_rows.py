"""Attention kernels of a measured table."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tpusim.compiler.work.attention_kernels import GRADIENTS
from tpusim.costs import attention_seconds
from tpusim.costs.compute import hbm_seconds
from tpusim.hardware import Device, load_chip
from tpusim.program import SPLASH, TOKAMAX, AttentionWork

BF16 = 2


@dataclass(frozen=True, slots=True)
class Kernel:
    """A call of attention as a row states it: sequences, heads, their lengths, and the blocks.

    passes: `fwd`, `bwd`, `dq` or `dkv`, of which a row times one or two.
    alone: the row times kernels of a profile, without what prepares the backward pass.
    transposed: queries are copied to another layout before (`q_layout=SEQ_MINOR`).
    """

    passes: tuple[str, ...]
    batch: int
    heads: int
    seq_len: int
    head_dim: int
    causal: bool
    block: tuple[int, int]
    block_backward: tuple[int, int]
    fused: bool
    library: str
    alone: bool
    transposed: bool

    @property
    def tensor_bytes(self) -> int:
        """Bytes of the queries."""
        return self.batch * self.heads * self.seq_len * self.head_dim * BF16

    def works(self) -> Iterator[AttentionWork]:
        """Yield the work of each kernel, whose operands are those of JAX's."""
        for name in self.passes:
            backward = name != "fwd"
            parts = ("all",) if self.fused else GRADIENTS
            tensors = (5, 3) if backward else (3, 1)
            read, written = (count * self.tensor_bytes for count in tensors)
            work = AttentionWork(
                self.batch, self.heads, self.seq_len, self.seq_len, self.head_dim, "bf16",
                self.causal, 0, backward, read, written, fused=self.fused, library=self.library,
                block=self.block_backward if backward else self.block,
            )  # fmt: skip
            if not self.alone or not backward:
                yield work
            else:
                for part in (name,) if name in GRADIENTS else parts:
                    yield replace(work, part=part)

    def seconds(self, device: Device) -> float:
        """Return the seconds of all passes."""
        copied = self.tensor_bytes if self.transposed else 0
        kernels = sum(float(attention_seconds(work, device)) for work in self.works())
        return kernels + float(hbm_seconds(copied, copied, device))


def attention(measured: Any) -> float:
    """Return the predicted seconds of an attention row."""
    return read_kernel(measured.kind, measured.params).seconds(load_chip(measured.chip).device)


FACTS = (r"\bb\d+\b", r"\bs\d+\b", r"\bh\d+(?:/\d+)?", r"\bhd\d+", r"\b\d+x\d+\b")


def completed(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return `params` of each row, those of attention with what only rows beside them state.

    Kernels of one step are rows whose ids differ in the last part (`-fwd`, `-bwd`).
    """
    steps = [
        row["id"].rpartition("-")[0] if row["kind"].startswith("attention in step") else ""
        for row in rows
    ]
    beside = defaultdict[str, str](str)
    for row, step in zip(rows, steps, strict=True):
        beside[step] += f" {row['params']}"
    return [
        " ".join((row["params"], *_facts_beside(row["params"], beside[step] if step else "")))
        for row, step in zip(rows, steps, strict=True)
    ]


def _facts_beside(params: str, beside: str) -> list[str]:
    """Return the sizes of the text `beside` of a kind that `params` does not state."""
    found = [re.search(fact, beside) for fact in FACTS if not re.search(fact, params)]
    return [fact[0] for fact in found if fact]


def read_kernel(kind: str, params: str) -> Kernel:
    """Return the kernel of a row. Raise ValueError if a size is missing.

    Two notations: `splash causal 32 heads hd128 seq=1024 bs=4; bq256 bkv512 fused_bwd=T bq_dkv=..`,
    and `JAX splash fwd b16 s2048 h8 hd256 1024x512`.
    """
    whole = params.replace("hd", "head_dim")
    block = _pair(params, r"\bbq(\d+) bkv(\d+)") or _pair(params, r"\b(\d+)x(\d+)\b")
    if not block:
        raise ValueError(f"{params!r} has no blocks such as 2048x1024")
    fused = bool(re.search(r"fused_bwd=T|fused bwd", params))
    return Kernel(
        passes=_passes(kind, params),
        batch=_number(params, "batch", r"\bbs=(\d+)", r"\bb(\d+)\b"),
        heads=_number(params, "heads", r"\b(\d+) heads", r"\bh(\d+)"),
        seq_len=_number(params, "sequence", r"\bseq=(\d+)", r"\bs(\d+)\b"),
        head_dim=_number(whole, "head_dim", r"\bhead_dim(\d+)"),
        causal=not re.search(r"\b(full mask|non-?causal|bidirectional)\b", params),
        block=block,
        block_backward=_pair(params, r"bq_dkv=(\d+)\S* bkv_dkv=(\d+)") or block,
        fused=fused,
        library=TOKAMAX if TOKAMAX in params.lower() else SPLASH,
        alone=kind.endswith("in step"),
        transposed="q_layout=SEQ_MINOR" in params,
    )


def _passes(kind: str, params: str) -> tuple[str, ...]:
    if kind.endswith("full"):
        return ("fwd", "bwd")
    if kind.endswith("fwd"):
        return ("fwd",)
    found = re.search(r"\b(fwd|bwd|dkv|dq)\b", params)
    if not found:
        raise ValueError(f"{params!r} does not say whether it is fwd, bwd, dq or dkv")
    return (found[1],)


def _pair(text: str, pattern: str) -> tuple[int, int] | None:
    found = re.search(pattern, text)
    return (int(found[1]), int(found[2])) if found else None


def _number(text: str, what: str, *patterns: str) -> int:
    found = next(filter(None, (re.search(pattern, text) for pattern in patterns)), None)
    if not found:
        raise ValueError(f"{text!r} does not say the {what}")
    return int(found[1])
