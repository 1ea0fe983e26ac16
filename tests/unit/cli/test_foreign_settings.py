"""Keys, values and chips as users of other libraries type them: read, or told what to write.

From the documentation of MaxText, JAX, Cloud TPU and GKE, Megatron and NeMo, DeepSpeed, Hugging
Face's Trainer, Levanter, PaxML, T5X and PyTorch.
"""

from pathlib import Path

import pytest
from commands import LONGEST_SENTENCE, SMALL, said
from extent import sample

CHIP = 'chip = "v5e"\ntopology = "4x4"'
RUN = SMALL.replace(CHIP, 'name = "v5e-16"') + "mesh = { fsdp = 16 }\n"

REFUSED = """
plan.gradient_accumulation_steps=4    -> tpusim calls it 'microbatches'
plan.accumulate_grad_batches=4        -> tpusim calls it 'microbatches'
plan.num_microbatches=4               -> tpusim calls it 'microbatches'
plan.num_pipeline_microbatches=4      -> tpusim calls it 'microbatches'
plan.per_device_batch_size=4          -> write global_batch = per_device_batch_size x devices
plan.per_device_train_batch_size=4    -> write global_batch = per_device_train_batch_size x devices
plan.train_micro_batch_size_per_gpu=4 -> write global_batch, and microbatches = global_batch /
plan.micro-batch-size=4               -> write global_batch, and microbatches = global_batch /
plan.PERCORE_BATCH_SIZE=4             -> write global_batch = percore_batch_size x cores
plan.batch_size=4                     -> tpusim calls it 'global_batch'
plan.train_batch_size=4               -> tpusim calls it 'global_batch'
plan.global_batch_size=4              -> tpusim calls it 'global_batch'
plan.max_target_length=4              -> tpusim calls it 'seq_len'
plan.seq-length=4                     -> tpusim calls it 'seq_len'
plan.max_seq_length=4                 -> tpusim calls it 'seq_len'
plan.MAX_SEQ_LEN=4                    -> tpusim calls it 'seq_len'
plan.context_length=4                 -> tpusim calls it 'seq_len'
plan.lora_rank=16                     -> tpusim calls it 'adapter_rank'
plan.target-modules=wq                -> tpusim calls it 'adapter_weights'
plan.lora=true                        -> write adapter_rank = 16
plan.freeze=wq                        -> write trainable, which names the weights that
plan.remat=save_qkv_proj              -> write remat = "full" and save = ["k", "q", "v"]
plan.remat=minimal_offload            -> write remat = "full" and offload = ["k", "mlp_in_0"
plan.remat=minimal_with_context       -> write remat = "minimal" and save = ["context"]
plan.remat=selective                  -> write remat = "minimal"
plan.remat=nothing_saveable           -> tpusim calls it 'full'
plan.remat=dots_saveable              -> tpusim calls it 'dots'
plan.remat=true                       -> write one of full, minimal, dots, none
plan.remat_policy=full                -> tpusim calls it 'remat'
plan.gradient_checkpointing=true      -> write remat = "full"
plan.recompute-granularity=full       -> tpusim calls it 'remat'
plan.dtype=bfloat16                   -> tpusim calls it 'bf16'
plan.dtype=fp32                       -> tpusim calls it 'f32'
plan.dtype=float16                    -> float16 is not modelled; write bf16
plan.bf16=true                        -> write dtype = "bf16"
plan.weight_dtype=bf16                -> tpusim calls it 'param_dtype'
plan.mu_dtype=bf16                    -> tpusim calls it 'moment_dtype'
plan.quantization=int8                -> tpusim calls it 'matmul_dtype'
plan.matmul_dtype=float8_e4m3fn       -> tpusim calls it 'fp8'
plan.optimizer=adamw_torch            -> tpusim calls it 'adam'
plan.optimizer=adam_pax               -> tpusim calls it 'adam'
plan.optimizer=lion                   -> valid are adafactor, adam
plan.opt_type=adamw                   -> tpusim calls it 'optimizer'
plan.optim=adamw                      -> tpusim calls it 'optimizer'
plan.learning_rate=0.1                -> it changes no step time; leave it out
plan.max_grad_norm=0.1                -> clip gradients by their norm anyway; leave it out
plan.max_steps=100                    -> a section [train] has steps
plan.fsdp=16                          -> an axis of the mesh, such as mesh = { fsdp = 4 }
plan.ici_fsdp_parallelism=16          -> an axis of the mesh, such as mesh = { fsdp = 4 }
plan.tensor-model-parallel-size=4     -> an axis of the mesh, such as mesh = { tensor = 4 }
plan.tp=4                             -> an axis of the mesh, such as mesh = { tensor = 4 }
plan.pipeline_model_parallel_size=4   -> an axis of the mesh, such as mesh = { stage = 4 }
plan.context_parallel_size=4          -> an axis of the mesh, such as mesh = { context = 4 }
plan.dcn_data_parallelism=4           -> an axis of the mesh, such as mesh = { dcn_data = 4 }
plan.dcn_pipeline=4                   -> an axis of the mesh, such as mesh = { dcn_stage = 4 }
plan.zero_stage=3                     -> ZeRO-3 is an axis fsdp of the mesh
plan.zero3=true                       -> ZeRO-3 is an axis fsdp of the mesh
plan.use_distributed_optimizer=true   -> write weight_update_axes = ["data"]
plan.sequence_parallel=true           -> it is the rule act_residual_seq = 'tensor'
plan.mesh_shape=[4,4]                 -> write mesh, a table of axes and sizes
plan.mesh=[4,4]                       -> write a table of axes and sizes
plan.logical_axis_rules=x             -> write plan.rules, a table
plan.num_pipeline_repeats=2           -> tpusim calls it 'virtual_stages'
plan.schedule=pipedream               -> tpusim calls it '1f1b'
plan.num_vocab_tiling=8               -> tpusim calls it 'vocab_tiles'
plan.sa_block_q=512                   -> tpusim calls it 'attention_block'
plan.optimizer_memory_host_offload=1  -> tpusim calls it 'offload_optimizer'
plan.flash_attention=true             -> write model.attention = "flash"
plan.attn_implementation=sdpa         -> write model.attention = "flash"
plan.hidden_size=4096                 -> it belongs to [model], as embed
plan.model_name=llama2-7b             -> it belongs to [model], as name
plan.num_slices=2                     -> it belongs to [slice]
plan.mesh.tp=2                        -> tpusim calls it 'tensor'
plan.mesh.pp=2                        -> tpusim calls it 'stage'
plan.mesh.dcn_pipeline=2              -> tpusim calls it 'dcn_stage'
plan.mesh.replica=2                   -> tpusim calls it 'data'
plan.mesh.mine=2                      -> valid are context, data, dcn_data, dcn_fsdp, dcn_stage
plan.rules.activation_mlp=fsdp        -> tpusim calls it 'act_mlp'
model.hidden_size=64                  -> tpusim calls it 'embed'
model.n_layers=64                     -> tpusim calls it 'layers'
model.ffn_hidden_size=64              -> tpusim calls it 'mlp'
model.num_query_groups=64             -> tpusim calls it 'kv_heads'
model.tie_word_embeddings=true        -> tpusim calls it 'tied_embeddings'
model.max_position_embeddings=64      -> tpusim calls it 'positions'
model.rope_theta=10000                -> it changes no step time; leave it out
model.attention=splash                -> tpusim calls it 'flash'
model.attention=sdpa                  -> tpusim calls it 'dot'
model.activation=swiglu               -> write gated = true and activation = "silu"
model.norm=RMSNorm                    -> tpusim calls it 'rms'
model.max_seq_len=64                  -> it belongs to [plan], as seq_len
model.dtype=bf16                      -> it belongs to [plan]
model.parameters=7e9                  -> write the name of a published model
slice.accelerator_type=v5e-16         -> tpusim calls it 'name'
slice.tpu_topology=4x4                -> tpusim calls it 'topology'
slice.num_chips=256                   -> write the name of a slice, such as "v5e-256"
slice.clock=1.2                       -> write a clock with its unit, in quotes, such as "1.2 GHz"
slice.name=tpu-v6e-slice              -> it says the chip, v6e, but no size
slice.name=ct6e-standard-4t           -> it says the chip, v6e, but no size
slice.name=TPU v4                     -> it says the chip, v4, but no size
slice.name=v5-256                     -> did you mean 'v5e' or 'v5p'?
slice.name=a3-highgpu-8g              -> write for example 'v4-4096' or 'v4:8x16x16'
slice.name=h100-8                     -> no generation is called 'h100'; valid are 7x
parallelism.fsdp=2                    -> unknown section [parallelism]; tpusim calls it 'plan'
hardware.chip=v5e                     -> unknown section [hardware]; tpusim calls it 'slice'
global_batch=3                        -> global_batch is in no section; it belongs to [plan]
per_device_batch_size=4               -> under [plan], write global_batch = per_device_batch_size
dcn_pipeline=2                        -> under [plan], write it as an axis of the mesh
slice=v7x-8                           -> write [slice] name = 'v7x-8', or a section [slice] with
model=llama2-7b                       -> write [model] name = 'llama2-7b', or a section [model]
mesh.fsdp=16                          -> mesh is in no section; it belongs to [plan]
train.max_steps=4                     -> tpusim calls it 'steps'
train.checkpoint_period=4             -> tpusim calls it 'checkpoints'
"""

READ = """
v5litepod-16      v5e:4x4
v5lite-16         v5e:4x4
trillium-16       v6e:4x4
tpu-v6e-16        v6e:4x4
v6e-4x4           v6e:4x4
V5E-16            v5e:4x4
v5e_16            v5e:4x4
v5e:4x4           v5e:4x4
TPU v5 lite-4x4   v5e:4x4
v4-32             v4:2x2x4
v5p-32            v5p:2x2x4
TPU v4-32         v4:2x2x4
v7x-16            7x:2x2x2
ironwood-16       7x:2x2x2
tpu7x-16          7x:2x2x2
tpu7-16           7x:2x2x2
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "run.toml"
    file.write_text(RUN)
    return str(file)


@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_a_setting_of_another_library_is_told_ours(
    line: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    setting, _, answer = (part.strip() for part in line.partition("->"))
    code, out, error = said(["simulate", path, "--set", setting], capsys)
    assert (code, out) == (2, "")
    assert answer in error
    assert len(error.removeprefix(path)) <= LONGEST_SENTENCE


@pytest.mark.parametrize("line", sample(READ.strip().splitlines(), 4))
def test_a_slice_of_another_name_is_read(
    line: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, pod = (part.strip() for part in line.rsplit(maxsplit=1))
    code, out, error = said(["simulate", path, "--set", f"slice.name={name}"], capsys)
    assert (code, error) == (0, "")
    assert f"transformer on {pod} (" in out


@pytest.mark.parametrize(
    ("name", "chip"),
    [("tpu7x", "7x"), ("v7x", "7x"), ("Ironwood", "7x"), ("trillium", "v6e"), ("TPU v4", "v4"),
     ("TPU v5 lite", "v5e"), ("v5litepod", "v5e"), ("tpu-v5p-slice", "v5p"), ("v6", "v6e")],
)  # fmt: skip
def test_a_chip_of_another_name_is_shown(
    name: str, chip: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = said(["chips", name], capsys)
    assert (code, error) == (0, "")
    assert out.startswith(f"TPU {chip}: ")
