"""The attention kernel of a measured run: its blocks, and the kernels of its backward pass.

No column gives them. Notes of a run may; otherwise the recipe that its source names decides, and
otherwise its framework's defaults.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tpusim.plan import ONE_KERNEL, TWO_KERNELS
from tpusim.validation.measured_runs import MeasuredRun
from tpusim.validation.remarks import remarks_of

Keys = Mapping[str, Any]


def _keys(block: list[int], backward: list[int], *, fused: bool = False) -> Keys:
    return {
        "attention_block": block,
        "attention_block_backward": backward if backward != block else (),
        "attention_backward": ONE_KERNEL if fused else TWO_KERNELS,
    }


LARGE, MEDIUM = [2048, 2048], [1024, 1024]
RECIPES: tuple[tuple[str, Keys], ...] = (
    (r"trillium/Llama3\.1-(8B|70B)", _keys(LARGE, LARGE, fused=True)),
    (r"trillium/(Llama3\.1-405B|GPT3-175B)", _keys([1024, 512], [2048, 512])),
    (r"trillium/Mixtral-8x7B", _keys([2048, 512], [2048, 512])),
    (r"trillium/Gemma3-12B", _keys(MEDIUM, [512, 2048])),
    (r"v5p/Llama3\.1-405B", _keys(LARGE, LARGE)),
    (r"ironwood/.*llama3\.1-70b", _keys(LARGE, [1024, 4096], fused=True)),
    (r"ironwood/.*gemma4-[24]b", _keys(MEDIUM, MEDIUM, fused=True)),
    (r"ironwood/.*(qwen3|gemma4-26b)|Qwen3-235B-Pretraining", _keys(MEDIUM, LARGE, fused=True)),
    (r"ironwood/|PERF_NOTES", _keys(LARGE, LARGE, fused=True)),
)
"""What MaxText's recipes set (`sa_block_*`, `sa_use_fused_bwd_kernel`), by the source of a run and
the name of its model; the first pattern that is found decides.

AI-Hypercomputer/tpu-recipes, training/*/*/run_recipe.sh, and the configs of MaxText's
benchmarks/maxtext_trillium_model_configs.py that they name. The recipes of v5p for Llama 2 and
Mixtral set none.
"""

TORCHPRIME_SPLASH = _keys(LARGE, LARGE, fused=True)
"""torch_xla/experimental/splash_attention.py; its flash attention has blocks of 512."""


def attention_kernel_of(run: MeasuredRun) -> Keys:
    """Return the keys of the plan for the run's attention kernel; none for the defaults."""
    if run.framework == "torchprime":
        return TORCHPRIME_SPLASH if run.attention.startswith("splash") else {}
    if run.framework != "maxtext":
        return {}
    named = (
        f"{run.source} {run.model}".replace(" ", "-") if "ironwood" in run.source else run.source
    )
    return next((keys for pattern, keys in RECIPES if re.search(pattern, named, re.I)), {})


def attention_notes(run: MeasuredRun) -> Iterator[str]:
    """Yield a note for a kernel that is not the default."""
    if (keys := attention_kernel_of(run)) and not remarks_of(run).plan.get("attention_block"):
        queries, columns = keys["attention_block"]
        yield (
            f"attention in blocks of {queries} x {columns} and backward in "
            f"{keys['attention_backward'].replace('-', ' ')}, as its recipe has it"
        )
