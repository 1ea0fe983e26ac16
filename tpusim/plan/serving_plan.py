"""The plan of a server: how a model is divided over the devices of a replica, and its dtypes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Literal, TypeAlias, get_args

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError, nearest
from tpusim.base.units import format_mesh
from tpusim.base.value_checks import check_flag, check_positive, check_words, is_number, seconds
from tpusim.plan.attention_kernel import AttentionKernel
from tpusim.plan.axes import Axes, Rule
from tpusim.plan.compiler import Compiler
from tpusim.plan.experts import Experts
from tpusim.plan.numerics import Numerics
from tpusim.plan.plan import Plan
from tpusim.plan.sharding import Sharding

WeightDtype: TypeAlias = Literal["bf16", "f32", "int8", "fp8", "int4", "fp4"]
CacheDtype: TypeAlias = Literal["bf16", "f32", "int8", "fp8"]
ServedMatmulDtype: TypeAlias = Literal["", "bf16", "int8", "fp8"]
ServedKernel: TypeAlias = Literal["paged", "dot"]
MoeBackend: TypeAlias = Literal["epmoe", "fused"]
AttentionSharding: TypeAlias = Literal["heads", "tokens"]

DATA, ATTENTION_DATA, TENSOR, EMBED = SERVING_AXES = ("data", "attn_data", "tensor", "embed")
"""The axes of a replica's mesh.

data: copies of all weights, each with sequences of its own.
attn_data: copies of attention's weights, each with sequences of its own; MLPs, experts and the
    vocabulary are divided over it too (data-parallel attention).
tensor: heads, MLPs, experts and the vocabulary are divided.
embed: the width of matrices is divided, with `tensor` the two dimensions of Pope et al.
    (arXiv:2211.05102, section 3.2.2); the residual stream is divided over both.
"""


EXPERT_TILES = (128, 2048, 5120)
"""Tiles of the grouped kernels of experts: rows, `embed`, width. vllm-project/tpu-inference 0.32.0
tunes them for each shape (kernels/megablox/tuned_block_sizes.py): 128 rows, and 2048 to 2560 by
3072 to 6144 of the matrices of Qwen3-Coder-480B."""


FUSED_BLOCK = 128
FUSED_BLOCKS = {"v6e": 512}
"""Tokens of a device for which the fused kernel of experts reads their weights once: the most that
SGLang-JAX tunes it to (kernels/fused_moe/v1/tuned_block_configs.py @07c4fb5c, 7x and v6e)."""

FUSED_TOKENS = 2
"""Tokens of each device that the fused kernel takes at least: those of a word of 32 bits."""


PAGED_BLOCK = (128, 2048)
PAGED_BLOCKS = {"v4": (128, 512), "7x": (128, 4096)}
"""Queries and keys of a block of a kernel over pages, where no tuned ones are known
(vllm-project/tpu-inference 0.32.0, kernels/ragged_paged_attention/v3/tuned_block_sizes.py, 32
queries; of less than 128 the blocks at the end of a sequence are as many keys)."""


@checked_call
@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPlan:
    """How a model is served by one replica.

    mesh: axis -> devices, of `SERVING_AXES`.
    rules: dimension -> axes, over those that follow from the mesh; see `Plan`.
    expert_parallel: experts are divided over the devices; otherwise each expert's matrices are.
    moe_backend: matmuls of divided experts: `epmoe`, grouped ones of each device's own experts
        between a gather of all tokens and a sum of all results, or `fused`, a kernel that sends
        each row of tokens to the device of its expert and back.
    kernel: `paged`, a kernel that reads pages of the cache, or `dot`, matmuls and a softmax of JAX.
    on_chip: what passes between the operations of a layer stays on the chip, where the compiler
        keeps it there (`lowering/on_chip_buffers.py`).
    attention: kernels and cache are divided by `heads`, or by `tokens`: each device then has all
        heads of a part of the sequences (Pope et al., section 3.3).
    gather_weights: matrices are divided over all devices and gathered before each matmul, and
        tokens are divided instead (weight-gathered, Pope et al., section 3.2.3).
    weight_dtype: matrices of the layers in HBM.
    matmul_dtype: their matmuls; empty for `bf16`. Activations are quantised before a matmul in a
        narrower dtype; weights in a narrower dtype than the matmul are converted as they are read.
    kv_dtype: the cache.
    page_size: tokens of a page of the cache.
    page_s: seconds in which a kernel starts the copy of a page to the chip.
    expert_s: least seconds of a fused kernel for each expert of a device, reached by tokens or not.
    memory_fraction: part of a device's usable HBM that weights, activations and cache may take.
    attention_block: queries and keys that the kernel visits at once for prompts; empty for those
        of the chip's generation.
    placement: see `Plan`.
    """

    mesh: Mapping[str, int] = field(default_factory=lambda: {TENSOR: 1})
    rules: Mapping[str, Rule] = field(default_factory=dict)
    expert_parallel: bool = False
    moe_backend: MoeBackend = "epmoe"
    kernel: ServedKernel = "paged"
    on_chip: bool = True
    attention: AttentionSharding = "heads"
    gather_weights: bool = False
    weight_dtype: WeightDtype = "bf16"
    matmul_dtype: ServedMatmulDtype = ""
    kv_dtype: CacheDtype = "bf16"
    page_size: int = 128
    page_s: float = 0.0
    expert_s: float = 0.0
    memory_fraction: float = 0.9
    attention_block: Sequence[int] = ()
    placement: Mapping[str, Sequence[str]] | None = None

    def __post_init__(self) -> None:
        check_words("serving", self)
        object.__setattr__(self, "mesh", dict(self.mesh))
        object.__setattr__(self, "attention_block", tuple(self.attention_block))
        for axis, size in self.mesh.items():
            if axis not in SERVING_AXES:
                raise PlanError(
                    f"serving.mesh has the axis {axis!r}, which no server has; "
                    f"{nearest(axis, SERVING_AXES)}"
                )
            check_positive(f"serving.mesh.{axis}", size)
        for key in ("expert_parallel", "gather_weights"):
            check_flag(f"serving.{key}", getattr(self, key))
        check_positive("serving.page_size", self.page_size)
        for key in ("page_s", "expert_s"):
            object.__setattr__(self, key, seconds(f"serving.{key}", getattr(self, key)))
        if not is_number(self.memory_fraction) or not 0 < self.memory_fraction <= 1:
            raise PlanError(
                f"serving.memory_fraction is {self.memory_fraction!r}; write a number above 0 and "
                "at most 1, such as 0.9"
            )
        if self.moe_backend == "fused" and not self.expert_parallel:
            raise PlanError(
                "serving.moe_backend is 'fused', a kernel between devices that have experts of "
                "their own; write expert_parallel = true, or moe_backend = 'epmoe'"
            )
        self.sharding  # noqa: B018  # checks mesh, rules and placement

    @property
    def devices(self) -> int:
        """Devices of a replica."""
        return prod(self.mesh.values())

    @property
    def ranks(self) -> int:
        """Groups of devices with sequences of their own."""
        return prod(self.mesh.get(axis, 1) for axis in (DATA, ATTENTION_DATA))

    @property
    def expert_devices(self) -> int:
        """Devices that experts are divided over; 1 where each expert's matrices are."""
        axes = (ATTENTION_DATA, TENSOR) if self.expert_parallel else ()
        return prod(self.mesh.get(axis, 1) for axis in axes)

    @property
    def fused_experts(self) -> bool:
        """True if a fused kernel exchanges rows between devices."""
        return self.moe_backend == "fused" and self.expert_devices > 1

    @property
    def least_tokens(self) -> int:
        """Tokens of the smallest step, of all ranks, that the kernel of experts takes."""
        return FUSED_TOKENS * self.devices if self.fused_experts else 1

    def over(self, *axes: str) -> Axes:
        """Return the axes among these that the mesh has."""
        return tuple(axis for axis in axes if self.mesh.get(axis, 1) > 1)

    @property
    def token_axes(self) -> Axes:
        """The axes over which tokens are divided outside of attention and matmuls."""
        if self.gather_weights:
            return self.over(*SERVING_AXES)
        return self.over(DATA, ATTENTION_DATA)

    def kernel_axes(self, tokens: int) -> Axes:
        """Return the axes that divide the sequences of a rank further within attention kernels.

        tokens: of a rank. The axes divide them; those with the most devices are chosen.
        """
        if not self.gather_weights and self.attention == "heads":
            return ()
        axes = self.over(TENSOR, EMBED)
        choices = [axes, axes[:1], axes[1:]]
        fit = [one for one in choices if tokens % prod(self.mesh[axis] for axis in one) == 0]
        return max(fit, key=lambda one: prod(self.mesh[axis] for axis in one), default=())

    @property
    def sharding(self) -> Sharding:
        """The sharding of weights and activations by rules."""
        wide, heads, embed = self.over(ATTENTION_DATA, TENSOR), self.over(TENSOR), self.over(EMBED)
        experts, within = (wide, ()) if self.expert_parallel else ((), wide)
        kept: Axes = () if self.gather_weights or not embed else (*embed, *wide)
        batch = self.over(DATA, ATTENTION_DATA)
        rules: dict[str, Rule] = {
            "embed": embed,
            "q_rank": (),
            "kv_rank": (),
            "layer_embed": (),
            "heads": heads,
            "kv_heads": heads,
            "mlp": wide,
            "shared_mlp": wide,
            "vocab": wide,
            "expert": experts,
            "expert_mlp": within,
            "act_batch": batch,
            "act_seq": self.over(TENSOR, EMBED) if self.gather_weights else (),
            "act_embed": kept,
            "act_heads": () if self.gather_weights else heads,
            "act_kv_heads": () if self.gather_weights else heads,
            "act_mlp": () if self.gather_weights else wide,
            "act_shared_mlp": () if self.gather_weights else wide,
            "act_vocab": () if self.gather_weights else wide,
            "act_expert": experts,
            "act_expert_mlp": within,
            "act_slot": (),
        }
        return Sharding(
            mesh={axis: size for axis, size in self.mesh.items() if size > 1} or {TENSOR: 1},
            rules={**rules, **self.rules},
            experts=Experts(tiles=EXPERT_TILES),
            placement=self.placement,
        )

    @property
    def numerics(self) -> Numerics:
        """The dtypes of the step."""
        matmul: Any = self.matmul_dtype
        return Numerics(compute="bf16", param="bf16", matmul=matmul)

    def step_plan(self, ranks: int, tokens: int, sharding: Sharding, chip: str) -> Plan:
        """Return the plan of one step, by which it is lowered and shown.

        ranks: of the replica, whose tokens are sequences of `tokens`.
        sharding: that of `sharding`, with the annotations of the step.
        chip: the generation of its chips.
        """
        plan = Plan(mesh=dict(sharding.mesh), seq_len=tokens, global_batch=ranks)
        paged = PAGED_BLOCKS.get(chip, PAGED_BLOCK) if self.kernel == "paged" else ()
        block: Any = self.attention_block or paged
        kernel = AttentionKernel(block=block) if block else AttentionKernel()
        return replace(
            plan,
            sharding=sharding,
            numerics=self.numerics,
            compiler=Compiler(attention_kernel=kernel),
            training=plan.training,
        )

    def __str__(self) -> str:
        return ", ".join(self._phrases())

    def _phrases(self) -> Iterator[str]:
        yield f"mesh {format_mesh(self.mesh)}"
        if self.expert_parallel:
            yield "experts divided" + ", fused" * self.fused_experts
        if self.attention != get_args(AttentionSharding)[0]:
            yield f"attention divided by {self.attention}"
        if self.gather_weights:
            yield "weights gathered"
        matmul = f", matmuls {self.matmul_dtype}" if self.matmul_dtype else ""
        yield f"weights {self.weight_dtype}{matmul}, cache {self.kv_dtype}"
        yield f"pages of {self.page_size} tokens, {self.memory_fraction:.0%} of HBM"
