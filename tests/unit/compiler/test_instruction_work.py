"""What an instruction asks of the core: bytes through HBM, FLOPs, and the compiler's word."""

import pytest
from hlo_lines import module

from tpusim.compiler.work.instruction_work import InstructionWork, instruction_work, is_free
from tpusim.costs import work_seconds
from tpusim.hardware import load_chip
from tpusim.program import (
    AttentionWork,
    CachedAttentionWork,
    CombinedWork,
    ConvolutionWork,
    EstimatedWork,
    MatmulWork,
    VectorWork,
    grouped_bytes_read,
    kind_of,
)

LAYOUT = "{1,0:T(8,128)(2,1)}"
MATRIX = 1024 * 1024 * 2
SQUARE = "f32[1024,1024]{1,0}"


def work(text: str, name: str = "") -> InstructionWork:
    made = module(text)
    return instruction_work(made, made.main, made.main[name or made.main.root])


MATMUL = f"""
    fused
    x = f32[1024,1024]{{1,0:T(8,128)}} parameter(0)
    y = bf16[1024,1024]{LAYOUT} parameter(1)
    narrow = bf16[1024,1024]{LAYOUT} convert(x)
    product = bf16[1024,1024]{LAYOUT} convolution(narrow, y), dim_labels=bf_io->bf
    * out = bf16[1024,1024]{LAYOUT} negate(product)

    main
    x = f32[1024,1024]{{1,0:T(8,128)}} parameter(0)
    y = bf16[1024,1024]{{1,0:T(8,128)(2,1)S(1)}} parameter(1)
    * z = bf16[1024,1024]{LAYOUT} fusion(x, y), calls=fused, backend_config={{"estimated_cycles":"9000"}}
"""  # noqa: E501


def test_a_fused_matmul_reads_what_is_in_hbm_and_multiplies_in_bf16() -> None:
    found = work(MATMUL)
    assert found.flops == 2 * 1024**3
    assert (found.read_bytes, found.write_bytes) == (2 * MATRIX, MATRIX)
    assert found.model == MatmulWork(
        1, 1024, 1024, 1024, "bf16", 2 * MATRIX, MATRIX, epilogue_flops=2 * 1024**2
    )
    assert found.understood
    assert found.kind == "matmul"


def test_the_compilers_cycles_are_seconds_of_its_clock() -> None:
    made, device = module(MATMUL), load_chip("v4").device
    chosen = instruction_work(made, made.main, made.main["z"]).costed_by("compiler")
    assert chosen == EstimatedWork("matmul", 9000, 2 * MATRIX, MATRIX)
    assert work_seconds(chosen, device) == 9000 / 1.05e9
    assert kind_of(chosen) == "matmul"
    assert isinstance(
        instruction_work(made, made.main, made.main["z"]).costed_by("model"), MatmulWork
    )


def test_cycles_that_are_no_estimate_are_none() -> None:
    text = MATMUL.replace('"9000"', '"9223372036854775807"')
    assert work(text).cycles is None
    assert isinstance(work(text).costed_by("compiler"), MatmulWork)


def test_a_dtype_that_the_chip_lacks_is_multiplied_as_bf16() -> None:
    text = MATMUL.replace("bf16", "f8e4m3fn")
    assert work(text).costed_by("model").dtype == "fp8"
    assert work(text).costed_by("model", load_chip("v5e").flops).dtype == "bf16"


STACK = """
    inner
    stack = bf16[64,256,128]{2,1,0} parameter(0)
    at = s32[] parameter(1)
    zero = s32[] constant(0)
    layer = bf16[1,256,128]{2,1,0} dynamic-slice(stack, at, zero, zero), dynamic_slice_sizes={1,256,128}
    * flat = bf16[256,128]{1,0} bitcast(layer)

    fused
    stack = bf16[64,256,128]{2,1,0} parameter(0)
    at = s32[] parameter(1)
    layer = bf16[256,128]{1,0} fusion(stack, at), calls=inner
    saved = bf16[64,256,128]{2,1,0} parameter(2)
    twice = bf16[256,128]{1,0} add(layer, layer)
    again = bf16[1,256,128]{2,1,0} bitcast(twice)
    zero = s32[] constant(0)
    * out = bf16[64,256,128]{2,1,0} dynamic-update-slice(saved, again, at, zero, zero)

    main
    stack = bf16[64,256,128]{2,1,0:T(8,128)(2,1)} parameter(0)
    at = s32[]{:T(128)S(6)} parameter(1)
    saved = bf16[64,256,128]{2,1,0:T(8,128)(2,1)} parameter(2)
    * out = bf16[64,256,128]{2,1,0:T(8,128)(2,1)} fusion(stack, at, saved), calls=fused
"""  # noqa: E501


def test_a_stack_of_layers_is_read_and_written_one_layer_at_a_time() -> None:
    layer = 256 * 128 * 2
    found = work(STACK)
    assert (found.read_bytes, found.write_bytes) == (layer, layer)
    assert found.model == VectorWork(layer, layer, 256 * 128, compiled=True)


def test_an_update_of_what_the_fusion_makes_writes_all_of_it() -> None:
    text = STACK.replace("saved = bf16[64,256,128]{2,1,0} parameter(2)",
                         "old = f32[64,256,128]{2,1,0} parameter(2)\n"
                         "    saved = bf16[64,256,128]{2,1,0} convert(old)")  # fmt: skip
    assert work(text).write_bytes == 64 * 256 * 128 * 2


def test_tiles_are_whole() -> None:
    text = """
    main
    a = f32[3,100]{1,0:T(8,128)} parameter(0)
    * b = f32[3,100]{1,0:T(8,128)} negate(a)
    """
    assert work(text).read_bytes == work(text).write_bytes == 8 * 128 * 4


def test_two_products_are_costed_one_after_the_other() -> None:
    text = """
    fused
    x = bf16[256,256]{1,0} parameter(0)
    y = bf16[256,256]{1,0} parameter(1)
    first = bf16[256,256]{1,0} convolution(x, y), dim_labels=bf_io->bf
    second = bf16[256,256]{1,0} convolution(x, y), dim_labels=bf_oi->bf
    * out = bf16[256,256]{1,0} add(first, second)

    main
    x = bf16[256,256]{1,0} parameter(0)
    y = bf16[256,256]{1,0} parameter(1)
    * out = bf16[256,256]{1,0} fusion(x, y), calls=fused
    """
    found, device = work(text), load_chip("v5e").device
    assert found.flops == 2 * 2 * 256**3
    assert isinstance(found.model, CombinedWork)
    assert found.model.read_bytes == found.read_bytes == 2 * 256 * 256 * 2
    one = work_seconds(found.model.parts[0], device)
    launch = device.costs.op_launch
    assert work_seconds(found.model, device) == pytest.approx(2 * one - launch)
    assert found.kind == kind_of(found.model) == "matmul"


def test_a_convolution_keeps_its_kind() -> None:
    text = """
    main
    x = bf16[8,32,32,64]{3,2,1,0} parameter(0)
    w = bf16[3,3,64,128]{3,2,1,0} parameter(1)
    * y = bf16[8,32,32,128]{3,2,1,0} convolution(x, w), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
    """  # noqa: E501
    found = work(text)
    assert isinstance(found.model, ConvolutionWork)
    assert found.kind == "convolution"
    assert found.flops == 2 * 8 * (32 * 3) ** 2 * 64 * 128, "taps on padding count too"
    on_data = 32 * 3 - 2  # one tap at each edge is on padding
    assert found.padding_flops == pytest.approx(found.flops - 2 * 8 * on_data**2 * 64 * 128)


@pytest.mark.parametrize(
    ("line", "free"),
    [
        ("b = f32[8,128]{1,0} bitcast(a)", True),
        ('b = f32[8,128]{1,0} custom-call(a), custom_call_target="AllocateBuffer"', True),
        ('b = f32[8,128]{1,0} custom-call(a), custom_call_target="mine"', False),
        ("b = s32[]{:T(128)} add(a, a)", True),
        ("b = f32[8,128]{1,0} add(a, a)", False),
    ],
)
def test_names_and_single_numbers_are_free(line: str, free: bool) -> None:
    made = module(f"main\na = f32[8,128]{{1,0}} parameter(0)\n* {line}")
    assert is_free(made.main["b"]) is free


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('b = f32[8,128]{1,0} custom-call(a), custom_call_target="mine"', "mine"),
        ("b = f32[8,128]{1,0} frobnicate(a)", "frobnicate"),
        ("b = f32[8,128]{1,0} fusion(a), calls=nowhere", "nowhere"),
        ("b = f32[8,128]{1,0} fusion(a)", "fusion"),
        ("b = f32[8,128]{1,0} convolution(a, a)", "dim_labels"),
        ("b = f32[8,128]{1,0} convolution(a, a), window={size=1 stride=0}, dim_labels=b0_0i->b0",
         "convolution"),
        ("b = f32[8,128]{1,0} add(gone, a)", "gone"),
        ("b = f32[0,128]{1,0} dot(a)", "dot"),
        ('b = f32[8,128]{1,0} custom-call(a), custom_call_target="tpu_custom_call"', "kernel"),
    ],
)  # fmt: skip
def test_what_is_strange_is_said_and_costs_its_bytes(line: str, why: str) -> None:
    found = work(f"main\na = f32[8,128]{{1,0}} parameter(0)\n* {line}", "b")
    assert not found.understood
    assert why in found.note
    assert isinstance(found.model, VectorWork)


QKV = "bf16[2,16,4096,128]{3,2,1,0}"


def kernel(name: str, operands: str, result: str, rest: str = "") -> InstructionWork:
    shapes = operands.split()
    lines = [f"p{at} = {shape} parameter({at})" for at, shape in enumerate(shapes)]
    names = ", ".join(f"p{at}" for at in range(len(shapes)))
    call = f'* {name} = {result} custom-call({names}), custom_call_target="tpu_custom_call"{rest}'
    return work("\n".join(["main", *lines, call]))


INFO = "s8[1,8,8]{2,1,0} s8[1,8,8]{2,1,0}"
FULL = 2 * 2 * 2 * 16 * 4096 * 4096 * 128


def test_splash_attention_is_causal_where_it_is_given_positions() -> None:
    keys = "bf16[2,4,4096,128]{3,2,1,0}"
    found = kernel("splash_mha_fwd_residuals.3", f"{INFO} {QKV} {keys} {keys} s32[4096,128]{{1,0}}",
                   f"({QKV}, f32[2,16,4096,128]{{3,2,1,0}})")  # fmt: skip
    assert isinstance(found.model, AttentionWork)
    assert (found.model.batch, found.model.heads, found.model.q_len) == (2, 16, 4096)
    assert found.model.causal
    assert not found.model.backward
    assert found.flops == FULL / 2
    full = kernel("splash_mha_fwd_residuals.3", f"{INFO} {QKV} {keys} {keys}", QKV)
    assert not full.model.causal
    assert full.flops == FULL


def test_two_backward_kernels_take_the_time_of_the_backward_pass() -> None:
    """Less what comes before them, which compiled programs have as operations of their own."""
    rest = f"f32[2,16,1,4096]{{3,2,1,0}} {QKV} f32[2,16,1,4096]{{3,2,1,0}}"
    queries = kernel("splash_mha_dq_no_residuals.1",
                     f"{INFO} {QKV} {QKV} {QKV} {rest} s32[4096,128]{{1,0}}", QKV)  # fmt: skip
    keys = kernel("splash_mha_dkv_no_residuals.1",
                  f"{INFO} {QKV} {QKV} {QKV} {rest} s32[8,4096]{{1,0}}",
                  f"({QKV}, {QKV})")  # fmt: skip
    assert queries.flops + keys.flops == 2 * FULL / 2
    assert (queries.model.part, keys.model.part) == ("dq", "dkv")
    device = load_chip("v5p").device
    both = sum(work_seconds(kernel.model, device) for kernel in (queries, keys))
    whole = AttentionWork(2, 16, 4096, 4096, 128, "bf16", True, 0, True, 0, 0)
    assert both == pytest.approx(work_seconds(whole, device), rel=0.1)


OLD_SIZES = (
    "block_kv_512_block_kv_compute_256_block_kv_dkv_1024_block_kv_dkv_compute_256_block_kv_dq_2048_"
    "block_q_256_block_q_dkv_128_block_q_dq_64_k_layout_1"
)
"""Sizes of blocks in a kernel's name, as JAX 0.5.3 writes them."""


@pytest.mark.parametrize(
    ("named", "part", "block"),
    [("fwd_residuals", "", (256, 512)), ("dq", "dq", (64, 2048)), ("dkv", "dkv", (128, 1024))],
)
def test_a_kernel_of_older_jax_is_of_the_pass_that_its_name_begins_with(
    named: str, part: str, block: tuple[int, int]
) -> None:
    """`block_kv_dq` stands in all of these names."""
    found = kernel(f"splash_mha_{named}_{OLD_SIZES}.3", f"{INFO} {QKV} {QKV} {QKV}", QKV).model
    assert isinstance(found, AttentionWork)
    assert found.part == part
    assert found.backward == bool(part)
    assert found.block == block


def test_blocks_are_read_from_a_kernel_s_metadata() -> None:
    sizes = (
        r"{\"block_q\": 1024, \"block_kv\": 2048, \"block_kv_compute\": 256, \"block_q_dq\": 64}"
    )
    meta = f', frontend_attributes={{kernel_metadata={{"xprof_metadata":"{sizes}"}}}}'
    found = kernel("splash_mha_fwd_residuals.3", f"{INFO} {QKV} {QKV} {QKV}", QKV, meta).model
    assert isinstance(found, AttentionWork)
    assert found.block == (1024, 2048)
    plain = kernel("splash_mha_fwd_residuals.3", f"{INFO} {QKV} {QKV} {QKV}", QKV).model
    assert isinstance(plain, AttentionWork)
    assert plain.block == (512, 512)


@pytest.mark.parametrize(
    ("results", "fused"),
    [
        ("bf16[8,2,16,4096,128]{4,3,2,1,0} bf16[2,4,4096,128]{3,2,1,0} bf16[2,4,4096,128]{3,2,1,0}",
         True),
        ("f32[512,128]{1,0} f32[512,128]{1,0} bf16[2,4,4096,128]{3,2,1,0} "
         "bf16[2,4,4096,128]{3,2,1,0}", False),
    ],
)  # fmt: skip
def test_a_fused_backward_kernel_is_known_by_its_results_under_grouped_queries(
    results: str, fused: bool
) -> None:
    keys = "bf16[2,4,4096,128]{3,2,1,0}"
    found = kernel("splash_mha_dkv.1", f"{INFO} {QKV} {keys} {keys} {QKV}",
                   f"({', '.join(results.split())})").model  # fmt: skip
    assert isinstance(found, AttentionWork)
    assert found.part == ("all" if fused else "dkv")


def test_a_fused_backward_kernel_may_have_narrower_values() -> None:
    """As multi-head latent attention: dQ and dK as wide as the keys, dV as the values."""
    keys, values = (f"bf16[2,16,4096,{width}]{{3,2,1,0}}" for width in (192, 128))
    fused, apart = (
        kernel(
            "splash_mha_dkv.1", f"{INFO} {keys} {keys} {values}", f"({', '.join(results)})"
        ).model
        for results in ([keys, keys, values], [keys, values])
    )
    assert fused.part == "all"
    assert apart.part == "dkv"


def test_grouped_matmuls_are_known_by_their_shapes() -> None:
    found = kernel("gmm.2", "s32[23]{0} bf16[8192,4096]{1,0} bf16[8,4096,14336]{2,1,0}",
                   "bf16[8192,14336]{1,0}")  # fmt: skip
    assert isinstance(found.model, MatmulWork)
    assert found.model.ragged == "m"
    assert found.flops == 2 * 8192 * 4096 * 14336
    turned = kernel("tgmm.3", "s32[23]{0} bf16[4096,8192]{1,0} bf16[8192,14336]{1,0}",
                    "bf16[8,4096,14336]{2,1,0}")  # fmt: skip
    assert turned.model.ragged == "k"
    assert turned.flops == found.flops


EXCHANGED = """
    main
    x = bf16[2048,2,2048]{{2,1,0}} parameter(0)
    none = bf16[{room},2,2048]{{2,1,0}} parameter(1)
    at = s32[4]{{0}} parameter(2)
    w = bf16[2,4096,1024]{{2,1,0}} parameter(3)
    came = bf16[{room},2,2048]{{2,1,0}} ragged-all-to-all(x, none, at, at, at, at), channel_id=1, replica_groups={{{{0,1,2,3}}}}
    rows = bf16[8192,4096]{{1,0}} parameter(4)
    * gmm.1 = bf16[8192,1024]{{1,0}} custom-call(at, rows, w), custom_call_target="tpu_custom_call"
"""  # noqa: E501


def test_of_a_buffer_that_an_exchange_fills_a_grouped_kernel_computes_what_arrives() -> None:
    """A buffer of 8192 rows, to which each device sends 2048, holds as many on average."""
    found = work(EXCHANGED.format(room=8192))
    assert found.flops == 2 * 2048 * 4096 * 1024
    assert (found.model.batch, found.model.m) == (2, 1024)
    assert found.model.read_bytes == grouped_bytes_read(2, 1024, 4096, 1024, "m", 2)
    assert found.model.write_bytes == 2 * 2048 * 1024
    assert "as many rows arrived in an exchange as were sent" in found.note
    other = work(EXCHANGED.format(room=4096))
    assert other.flops == 2 * 8192 * 4096 * 1024, "not the buffer of this kernel"
    assert "exchange" not in other.note


RAGGED = """
    pick
    rows = bf16[16384,{n}]{{1,0}} parameter(0)
    mask = pred[8,16384]{{1,0}} parameter(1)
    each = bf16[8,16384,{n}]{{2,1,0}} broadcast(rows), dimensions={{1,2}}
    zero = bf16[] constant(0)
    none = bf16[8,16384,{n}]{{2,1,0}} broadcast(zero), dimensions={{}}
    theirs = pred[8,16384,{n}]{{2,1,0}} broadcast(mask), dimensions={{0,1}}
    * own = bf16[8,16384,{n}]{{2,1,0}} select(theirs, each, none)
"""
MASKED = (
    RAGGED.format(n=1024)
    + RAGGED.format(n=4096).replace("pick", "pick2")
    + """
    fused
    kernel = bf16[16384,4096]{1,0} parameter(0)
    rows = bf16[16384,1024]{1,0} parameter(1)
    mask = pred[8,16384]{1,0} parameter(2)
    left = bf16[8,16384,1024]{2,1,0} fusion(rows, mask), calls=pick
    right = bf16[8,16384,4096]{2,1,0} fusion(kernel, mask), calls=pick2
    * out = bf16[8,1024,4096]{2,1,0} convolution(left, right), window={size=8 stride=7 lhs_dilate=8}, dim_labels=0fb_0io->0bf

    main
    kernel = bf16[16384,4096]{1,0} parameter(0)
    rows = bf16[16384,1024]{1,0} parameter(1)
    mask = pred[8,16384]{1,0} parameter(2)
    * made = bf16[8,1024,4096]{2,1,0} fusion(kernel, rows, mask), calls=fused, backend_config={"estimated_cycles":"6440224","mask_aggregator_config":{"iteration_skipper_mode":"ITERATION_SKIPPER_MODE_ITERATION_INDICES"}}
"""  # noqa: E501
)


def test_of_rows_that_are_masked_for_all_groups_but_one_each_is_multiplied_once() -> None:
    """The gradient of a ragged dot, as libtpu 0.0.42.1 writes it: eight groups, in turn."""
    found = work(MASKED)
    assert found.flops == 2 * 16384 * 1024 * 4096
    assert (found.model.batch, found.model.k, found.model.ragged) == (8, 16384 / 8, "k")
    assert found.cycles == 6440224 // 8
    assert found.note == "grouped matmul: groups taken as even"
    whole = work(MASKED.replace("ITERATION_SKIPPER_MODE_ITERATION_INDICES", "NONE"))
    assert whole.flops == 8 * found.flops
    assert whole.model.epilogue_flops == 8 * found.model.epilogue_flops


def test_other_kernels_are_as_their_authors_estimate() -> None:
    estimate = (
        '{"custom_call_config":{"cost_estimate":{"flops":"2000000000000","bytes_accessed":"0"}}}'
    )
    found = kernel("mine.1", QKV, QKV, f", backend_config={estimate}")
    assert found.understood
    assert found.flops == 2e12
    assert found.kind == "matmul"


def flash(beside: int) -> InstructionWork:
    scores = 2 * 16 * 4096 * 4096
    estimate = f'{{"flops":"{scores * (4 * 128 + beside)}","transcendentals":"{scores}"}}'
    rest = f', backend_config={{"custom_call_config":{{"cost_estimate":{estimate}}}}}'
    return kernel("closed_call.66", f"{QKV} {QKV} {QKV}", QKV, rest)


@pytest.mark.parametrize(("beside", "causal"), [(2, False), (3, True), (4, True)])
def test_flash_attention_is_known_by_its_authors_estimate(beside: int, causal: bool) -> None:
    """One exponential a score; a scale and a causal mask are one more operation each."""
    found = flash(beside)
    assert isinstance(found.model, AttentionWork)
    assert found.model.causal is causal
    assert found.flops == FULL / (2 if causal else 1)
    assert bool(found.note) is (beside == 3)


def test_backward_kernels_have_the_mask_of_the_forward_ones() -> None:
    scores = 2 * 16 * 4096 * 4096
    estimate = f'{{"flops":"{scores * (4 * 128 + 2)}","transcendentals":"{scores}"}}'
    call = 'custom-call(q, q, q), custom_call_target="tpu_custom_call"'
    made = module(f"""
    main
    q = {QKV} parameter(0)
    a = {QKV} {call}, backend_config={{"custom_call_config":{{"cost_estimate":{estimate}}}}}
    * flash_mha_bwd_dq_block_q_major_512.1 = {QKV} {call}
    """)
    found = instruction_work(made, made.main, made.main[made.main.root])
    assert not found.model.causal
    assert found.model.part == "dq"


def test_a_paged_cache_is_read_as_far_as_its_tables_reach() -> None:
    """8 sequences of at most 16 pages, of 1024 pages in all."""
    found = kernel(
        "ragged_paged_attention_kernel.1",
        "s32[8]{0} s32[8,16]{1,0} bf16[8,32,128]{2,1,0} bf16[1024,64,16,128]{3,2,1,0}",
        "bf16[8,32,128]{2,1,0}",
    )
    assert isinstance(found.model, CachedAttentionWork)
    assert found.model.load == (8, 8 * 16 * 64, 0, 0, 0)
    assert (found.model.heads, found.model.kv_heads) == (32, 8)
    query, pages = 8 * 32 * 128 * 2, 1024 * 64 * 16 * 128 * 2
    assert found.read_bytes == query + pages * 8 * 16 / 1024


def test_the_last_tokens_of_prompts_see_all_but_those_after_them() -> None:
    """2 sequences of 64 tokens, at the end of 128 keys each."""
    found = kernel(
        "ragged_paged_attention_kernel.1",
        "s32[2]{0} s32[2,2]{1,0} bf16[128,32,128]{2,1,0} bf16[4,64,16,128]{3,2,1,0}",
        "bf16[128,32,128]{2,1,0}",
    )
    assert isinstance(found.model, CachedAttentionWork)
    pairs = 2 * sum(range(65, 129))
    assert found.model.load == (0, 0, 128, 256, pairs)


@pytest.mark.parametrize(
    ("window", "operations"),
    [("1x255 pad=0_0x127_127", 1), ("1x128 pad=0_0x127_0", 8), ("1x3 pad=0_0x1_1", 3)],
)
def test_a_window_over_the_whole_row_is_one_reduction(window: str, operations: int) -> None:
    found = work(f"""
    main
    x = f32[64,128]{{1,0}} parameter(0)
    zero = f32[] constant(0)
    * y = f32[64,128]{{1,0}} reduce-window(x, zero), window={{size={window}}}, to_apply=add
    """)
    assert found.model.flops == operations * 64 * 128


def test_a_fusion_that_renames_thousands_of_times_costs_its_bytes() -> None:
    names = [f"b{at} = {SQUARE} bitcast({f'b{at - 1}' if at else 'a'})" for at in range(3000)]
    inside = "\n".join(["fused", f"a = {SQUARE} parameter(0)", *names])
    found = work(
        f"{inside}\n\nmain\np = {SQUARE} parameter(0)\n* z = {SQUARE} fusion(p), calls=fused"
    )
    assert (found.understood, found.write_bytes) == (False, 4 * 1024 * 1024)


def test_a_window_of_a_billion_taps_is_not_counted_one_by_one() -> None:
    long = 10**9
    found = work(
        f"main\nx = bf16[8,{long},16]{{2,1,0}} parameter(0)\n"
        f"w = bf16[{long},16,8]{{2,1,0}} parameter(1)\n"
        f"* z = bf16[8,{long},8]{{2,1,0}} convolution(x, w), "
        f"window={{size={long} pad={long // 2}_{long // 2 - 1}}}, dim_labels=b0f_0io->b0f"
    )
    assert (found.understood, found.flops) == (False, 0)
    assert "1,000,000,000 taps" in found.note
