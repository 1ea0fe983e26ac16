"""Passes and names from `op_name`, as JAX writes it."""

import pytest
from hlo_lines import module

from tpusim.base import Phase
from tpusim.compiler.to_program.op_metadata import (
    before_forward,
    is_training,
    name_bearer,
    phase_of,
    scope_of,
)

LAYER = "while/body/closed_call"
SPLASH = "vmap(jit(_splash_attention))/splash_mha"


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        (f"jit(step)/jvp()/{LAYER}/bsd,df->bsf/dot_general", Phase.FORWARD),
        (f"jit(step)/transpose(jvp())/{LAYER}/checkpoint/mul", Phase.BACKWARD),
        (
            f"jit(step)/transpose(jvp())/{LAYER}/checkpoint/rematted_computation/mul",
            Phase.RECOMPUTE,
        ),
        (
            f"jit(step)/transpose(jvp(while))/body/checkpoint/rematted_computation/{SPLASH}_dq_no_"
            "residuals_block_kv_dq=512/pallas_call",
            Phase.BACKWARD,
        ),
        (
            f"jit(step)/transpose(jvp(while))/body/checkpoint/rematted_computation/{SPLASH}_fwd_"
            "residuals_block_kv_dq=512/pallas_call",
            Phase.RECOMPUTE,
        ),
        ("jit(step)/adam/sub", Phase.OPTIMIZER),
        ("state[0]['layers/wq']", None),
        ("broadcast.72", None),
        ("", None),
    ],
)
def test_the_passes_of_a_training_step(name: str, phase: Phase | None) -> None:
    assert phase_of(name, training=True) is phase


def test_all_of_an_inference_is_forward() -> None:
    assert phase_of("jit(decode)/while/body/dot_general", training=False) is Phase.FORWARD
    assert not is_training(["jit(decode)/mul", "jit(decode)/jvp()/mul"])
    assert is_training(["jit(step)/transpose(jvp(f))/mul"])


STEPS = """
main
p = f32[8]{0} parameter(0)
zero = s32[] constant(0), metadata={op_name="jit(step)/transpose(jvp())/neg"}
cast = bf16[8]{0} convert(p), metadata={op_name="jit(step)/convert_element_type"}
moved = bf16[8]{0} copy(cast)
up = bf16[8]{0} dynamic-slice(moved, zero), metadata={op_name="jit(step)/jvp()/neg"}
down = bf16[8]{0} negate(up), metadata={op_name="jit(step)/transpose(jvp())/neg"}
new = f32[8]{0} add(p, down), metadata={op_name="jit(step)/sgd/add"}
again = bf16[8]{0} convert(new), metadata={op_name="jit(step)/convert_element_type"}
* second = bf16[8]{0} negate(again), metadata={op_name="jit(step)/jvp()/neg"}
"""


def test_what_the_forward_pass_is_made_from_comes_before_it() -> None:
    assert before_forward(module(STEPS).main) == {"p", "zero", "cast", "moved", "up"}


LOSS = """
main
p = f32[8]{0} parameter(0)
up = f32[8]{0} negate(p), metadata={op_name="jit(step)/jvp()/neg"}
softmax = f32[8]{0} exponential(up), metadata={op_name="jit(step)/exp"}
down = f32[8]{0} multiply(softmax, p), metadata={op_name="jit(step)/transpose(jvp())/mul"}
decayed = f32[8]{0} negate(p), metadata={op_name="jit(step)/adam/neg"}
* new = f32[8]{0} add(decayed, down), metadata={op_name="jit(step)/adam/add"}
"""


def test_so_does_what_only_the_backward_pass_reads() -> None:
    """The softmax of a loss with a gradient of its own; what the optimizer alone reads does not."""
    assert before_forward(module(LOSS).main) == {"p", "up", "softmax"}


KERNELS = """
main
p = bf16[8]{0} parameter(0)
scores = bf16[8]{0} negate(p), metadata={op_name="jit(step)/jvp(attention)/neg"}
CALL
"""
CALL = 'custom-call(scores), custom_call_target="tpu_custom_call", metadata={op_name="NAME"}'


@pytest.mark.parametrize(
    ("line", "bearer"),
    [
        (f"online-softmax = bf16[8]{{0}} {CALL.replace('NAME', 'online-softmax')}", "scores"),
        (f"online-softmax.12 = bf16[8]{{0}} {CALL.replace('NAME', 'online-softmax')}", "scores"),
        (f"splash.1 = bf16[8]{{0}} {CALL.replace('NAME', 'jit(step)/splash')}", "splash.1"),
        ('negate = bf16[8]{0} negate(scores), metadata={op_name="negate"}', "negate"),
    ],
)
def test_a_kernel_that_the_compiler_wrote_is_named_by_its_operand(line: str, bearer: str) -> None:
    found = module(KERNELS.replace("CALL", line))
    assert name_bearer(found, found.main, found.main.instructions[-1]).name == bearer


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        (f"jit(step)/jvp()/{LAYER}/bsd,df->bsf/dot_general", "bsd,df->bsf/dot_general"),
        (f"jit(step)/transpose(jvp(mlp))/{LAYER}/checkpoint/mul", "mlp/mul"),
        (
            f"jit(step)/transpose(jvp())/{LAYER}/checkpoint/rematted_computation/norm/rsqrt",
            "norm/rsqrt",
        ),
        ("jit(step)/jvp(jit(_take))/lt", "_take/lt"),
        ("jit(<unnamed function>)/jvp()/gather", "gather"),
        ("state[0]['layers/wq']", "state[0]['layers/wq']"),
        ("", ""),
    ],
)
def test_a_scope_is_what_the_user_called_it(name: str, scope: str) -> None:
    assert scope_of(name) == scope
