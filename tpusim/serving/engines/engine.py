"""A serving engine: its defaults, its scheduler, its buckets and its host."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self, get_args

from tpusim.base.errors import PlanError, nearest
from tpusim.base.shown_value import cut
from tpusim.base.text_table import wrapped_table
from tpusim.base.units import format_seconds
from tpusim.engine.clock import picoseconds
from tpusim.plan.serving_plan import MoeBackend, ServedKernel
from tpusim.server import Policy
from tpusim.server.policy import Priority
from tpusim.serving.engines.buckets import Buckets, Sizes, bucket_sizes, divided
from tpusim.serving.engines.page_sizes import page_size
from tpusim.serving.engines.presets import EngineFact, preset_of

FUSED_FROM = 16
"""Devices from which SGLang-JAX's recipes take the fused kernel of experts: up to 8 the grouped
matmuls are faster (sgl-project/sglang-jax, docs/cookbook/base/launch-flags-reference.md and
docs/cookbook/autoregressive/Xiaomi/MiMo-V2-Flash.md @047fbd76)."""

MOE_BACKENDS = ("", *get_args(MoeBackend))

HOST_TIMES = ("host_s", "schedule_s", "sequence_s", "request_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A serving engine with its settings.

    name, version: of the preset and the engine.
    max_num_seqs: sequences that run at a time: of each data-parallel rank (`seqs_per_rank`), or of
        all of them.
    max_num_batched_tokens: tokens of a step, of each rank.
    seqs_per_rank: whether `max_num_seqs` is that of one rank.
    max_model_len: tokens of a sequence; 0 for no limit.
    page_size: tokens of a page of the cache; 0 where it follows from `page_rule`.
    page_rule: how the engine chooses its pages; empty where `page_size` says it.
    kernel: attention, a kernel over pages (`paged`) or matmuls and a softmax (`dot`).
    on_chip: what passes between the operations of a layer stays on the chip.
    page_s: seconds in which the attention kernel starts the copy of a page.
    expert_s: least seconds of the fused kernel of experts for each expert of a device.
    memory_fraction: share of the usable HBM that weights, activations and cache may take.
    chunked_prefill: a prompt may be computed in several steps.
    mixed: prompts and decoding sequences share steps.
    priority: who is scheduled first, `decode` or `prefill`.
    reserve: tokens that a prompt must find free to be admitted; see `Policy`. Empty for None.
    prefix_cache: pages of equal prefixes are computed once.
    whole_cache: attention of a step that decodes reads the cache of each sequence to its end, which
        is `max_model_len`.
    routes_padding: experts serve tokens too that only fill a bucket.
    moe_backend: matmuls of divided experts, `epmoe` or `fused` (see `ServingPlan`); empty for
        `fused` where they are divided over `FUSED_FROM` devices or more.
    token_buckets, decode_buckets, row_buckets: rules of the sizes that steps are padded to; see
        `bucket_sizes`.
    host_s: seconds of the host between two steps, with which no device computes.
    schedule_s: seconds of the host for a step beside the devices, which no step goes below; 0 where
        the host does nothing beside them.
    sequence_s: seconds of the host for each sequence: beside the devices where `schedule_s` is,
        otherwise between two steps.
    request_s: seconds of the host for a request before it is scheduled, and after it.
    hold_s: longest time for which requests are held to begin side by side, one in each
        data-parallel rank; 0 where they are not.
    facts: kind and source of each default, by its key; what was changed is not among them.

    >>> engine = Engine.of("vllm-tpu")
    >>> engine.max_num_seqs, engine.priority, engine.changed(max_num_seqs=8).max_num_seqs
    (256, 'decode', 8)
    """

    name: str
    version: str = ""
    max_num_seqs: int
    max_num_batched_tokens: int
    seqs_per_rank: bool = True
    max_model_len: int = 0
    page_size: int = 0
    page_rule: str = ""
    kernel: ServedKernel = "paged"
    on_chip: bool = True
    page_s: float = 0.0
    expert_s: float = 0.0
    memory_fraction: float = 0.9
    chunked_prefill: bool = True
    mixed: bool = True
    priority: Priority = "decode"
    reserve: float | Literal[""] = ""
    prefix_cache: bool = False
    whole_cache: bool = False
    routes_padding: bool = False
    moe_backend: Literal["", "epmoe", "fused"] = ""
    token_buckets: Mapping[str, Any] = field(default_factory=dict)
    decode_buckets: Mapping[str, Any] = field(default_factory=dict)
    row_buckets: Mapping[str, Any] = field(default_factory=dict)
    host_s: float = 0.0
    schedule_s: float = 0.0
    sequence_s: float = 0.0
    request_s: float = 0.0
    hold_s: float = 0.0
    facts: Mapping[str, EngineFact] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for key in ("max_num_seqs", "max_num_batched_tokens"):
            _check_least(key, getattr(self, key), 1)
        for key in ("max_model_len", "page_size", "page_s", "expert_s", "hold_s", *HOST_TIMES):
            _check_least(key, getattr(self, key), 0)
        if self.moe_backend not in MOE_BACKENDS:
            named = self.moe_backend
            raise PlanError(f"moe_backend is {cut(named)!r}; {nearest(named, MOE_BACKENDS)}")
        if not 0 < self.memory_fraction <= 1:
            raise PlanError(
                f"memory_fraction is {self.memory_fraction}; write a share of the memory above 0 "
                "and at most 1, such as 0.9"
            )

    @classmethod
    def of(cls, name: str, version: str = "", chip: str = "", **changes: Any) -> Self:
        """Return an engine with its defaults, some of them changed.

        name: an engine or a preset, such as `vllm-tpu`.
        version: of the engine; one that no preset lists has the defaults of the newest.
        chip: generation of the chips, as some defaults depend on it.

        Raise PlanError for an engine or a setting that is not known.
        """
        preset = preset_of(name, version)
        values = {key: _by_chip(key, fact.value, chip) for key, fact in preset.facts.items()}
        engine = cls(
            name=preset.name, version=version or preset.version, facts=preset.facts, **values
        )
        return engine.changed(**changes)

    def changed(self, **changes: Any) -> Self:
        """Return the engine with some settings changed; their facts are dropped.

        Raise PlanError for a setting that the engine does not have.
        """
        known = {each.name for each in fields(self)} - {"facts", "name"}
        for key in changes:
            if key not in known:
                raise PlanError(f"{self.name} has no setting {key!r}; {nearest(key, known)}")
        facts = {key: fact for key, fact in self.facts.items() if key not in changes}
        return replace(self, facts=facts, **changes)

    def page_tokens(self, model_len: int = 0, latent: bool = False) -> int:
        """Return the tokens of a page.

        model_len: tokens that the model can see, where `max_model_len` does not limit them.
        latent: the model has latent attention.
        """
        if self.page_size:
            return self.page_size
        length = self.max_model_len or model_len
        return page_size(self.page_rule, length, self.max_num_seqs, latent)

    def followed(
        self, experts: int = 1, model_len: int = 0, latent: bool = False
    ) -> dict[str, Any]:
        """Return the keys of a `ServingPlan` that are the engine's where nothing else is written.

        experts: devices that experts are divided over.
        model_len, latent: see `page_tokens`.
        """
        return {
            "page_size": self.page_tokens(model_len, latent),
            "page_s": self.page_s,
            "expert_s": self.expert_s,
            "kernel": self.kernel,
            "on_chip": self.on_chip,
            "memory_fraction": self.memory_fraction,
            "moe_backend": self.backend(experts),
        }

    def backend(self, experts: int) -> MoeBackend:
        """Return the matmuls of experts that are divided over so many devices."""
        if experts == 1:
            return "epmoe"
        return self.moe_backend or ("fused" if experts >= FUSED_FROM else "epmoe")

    def rank_seqs(self, ranks: int = 1) -> int:
        """Return the sequences that one of the data-parallel ranks runs at a time."""
        return self.max_num_seqs if self.seqs_per_rank else max(self.max_num_seqs // ranks, 1)

    def buckets(self, ranks: int = 1, least_decodes: int = 0) -> Buckets:
        """Return the sizes that the steps of each data-parallel rank are padded to.

        least_decodes: sequences of the smallest step that only decodes, over all ranks, where a
            kernel needs them.
        """
        seqs, tokens = self.rank_seqs(ranks), self.max_num_batched_tokens
        batch = min(seqs, tokens)
        floor = batch if self.token_buckets.get("at_least_seqs") else 1
        return Buckets(
            tokens=self._sizes(self.token_buckets, tokens, ranks, floor),
            decodes=self._sizes(self.decode_buckets, batch, ranks, -(-least_decodes // ranks)),
            rows=self._sizes(self.row_buckets, seqs, ranks),
            cache=self.max_model_len if self.whole_cache else 0,
        )

    def _sizes(self, rule: Mapping[str, Any], limit: int, ranks: int, least: int = 1) -> Sizes:
        """Return the sizes of a rule for one rank; it is stated for one rank, or for all."""
        if rule.get("per_rank"):
            return bucket_sizes(rule, limit, least)
        sizes = bucket_sizes(rule, limit * ranks, max(ranks, least * ranks))
        return divided(sizes, ranks)

    def policy(
        self,
        *,
        pages: int,
        page_size: int,
        ranks: int = 1,
        drafted: int = 0,
        accepted: float = 1.0,
    ) -> Policy:
        """Return the policy of one replica.

        pages: pages of each rank.
        page_size: tokens of a page; see `page_tokens`.
        drafted, accepted: those of `Policy`.
        """
        return Policy(
            engine=self.name,
            version=self.version,
            max_num_seqs=self.rank_seqs(ranks),
            max_num_batched_tokens=self.max_num_batched_tokens,
            ranks=ranks,
            max_model_len=self.max_model_len,
            page_size=page_size,
            pages=pages,
            chunked_prefill=self.chunked_prefill,
            mixed=self.mixed,
            priority=self.priority,
            reserve=self.reserve if self.reserve != "" else None,
            prefix_cache=self.prefix_cache,
            host_ps=picoseconds(self.host_s),
            schedule_ps=picoseconds(self.schedule_s),
            sequence_ps=picoseconds(self.sequence_s),
            request_ps=picoseconds(self.request_s),
            hold_ps=picoseconds(self.hold_s),
            drafted=drafted,
            accepted=accepted,
        )

    def __str__(self) -> str:
        head = f"engine {self.name} {self.version}".rstrip()
        return "\n".join([head, *wrapped_table([*self._rows()], left=2)])

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        for each in fields(self):
            if each.name in ("name", "version", "facts"):
                continue
            value = getattr(self, each.name)
            shown = format_seconds(value) if each.name in HOST_TIMES else _shown(value)
            fact = self.facts.get(each.name)
            yield each.name, shown, "as given" if fact is None else f"{fact.kind}: {fact.source}"


def _by_chip(key: str, value: Any, chip: str) -> Any:
    """Return a default, which may be a table by chip."""
    if isinstance(value, Mapping) and not key.endswith("_buckets"):
        return value.get(chip, value["other"])
    return value


def _check_least(key: str, value: float, least: int) -> None:
    if isinstance(value, bool) or value < least:
        raise PlanError(f"{key} is {value!r}; write a number from {least} up")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return _shown_rule(value)
    return f"{value:,}" if isinstance(value, int) else str(value) or "none"


def _shown_rule(rule: Mapping[str, Any]) -> str:
    """Return a rule of sizes in words."""
    said = [" ".join(map(str, rule["sizes"]))] if "sizes" in rule else []
    if "least" in rule:
        said.append(f"2^n from {rule['least']} to {rule.get('most', 'the limit')}")
    if rule.get("with_limit"):
        said.append("the limit")
    return ", ".join(dict.fromkeys(said)) or "any"
