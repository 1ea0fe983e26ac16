"""Training steps of models from packages of PyTorch, unmodified, through `ts.xla.torch`.

python torch_programs.py     on v5e:2x2; needs tpusim[torch], transformers, conformer, metnet
"""

import sys
from importlib.metadata import version

import optax
import torch
import transformers
from jax.sharding import PartitionSpec as P

import tpusim as ts
from tpusim.base.units import format_seconds

BATCH = 32


def vit():
    """Return a ViT-B/16 and a call of it."""
    config = transformers.ViTConfig(torch_dtype="bfloat16")
    images = torch.zeros(BATCH, 3, 224, 224, dtype=torch.bfloat16, device="meta")
    labels = torch.zeros(BATCH, dtype=torch.int64, device="meta")
    return transformers.ViTForImageClassification, config, {
        "pixel_values": images, "labels": labels
    }  # fmt: skip


def conformer():
    """Return the encoder of Wav2Vec2's Conformer, base size, on frames of features."""
    config = transformers.Wav2Vec2ConformerConfig(position_embeddings_type="rotary")
    frames = torch.zeros(BATCH, 512, config.hidden_size, dtype=torch.bfloat16, device="meta")
    from torch.nn.utils import parametrize
    from transformers.models.wav2vec2_conformer import modeling_wav2vec2_conformer as modeling

    def model(config):
        encoder = modeling.Wav2Vec2ConformerEncoder(config)
        parametrize.remove_parametrizations(encoder.pos_conv_embed.conv, "weight")
        return encoder

    return model, config, {"hidden_states": frames}


def small_conformer():
    """Return the Conformer of package `conformer`: 12 blocks of 512, on frames of features."""
    from conformer import Conformer

    def model(_):
        return Conformer(512, depth=12, dim_head=64, heads=8, conv_kernel_size=31)

    return model, None, {"x": torch.zeros(BATCH, 512, 512, dtype=torch.bfloat16, device="meta")}


def metnet2():
    """Return a MetNet-2 of package `metnet`, of a quarter of its channels."""
    from metnet import MetNet2

    def model(_):
        return MetNet2(
            forecast_steps=4, input_size=128, num_input_timesteps=4, upsampler_channels=128,
            lstm_channels=32, encoder_channels=64, center_crop_size=16,
        )  # fmt: skip

    frames = torch.zeros(4, 4, 12, 128, 128, dtype=torch.bfloat16, device="meta")
    return model, None, {"x": frames, "lead_time": 0}


PROGRAMS = {"transformers": (vit, conformer), "conformer": (small_conformer,), "metnet": (metnet2,)}


def loss(found):
    """Return the model's own loss, or the mean square of its result."""
    if getattr(found, "loss", None) is not None:
        return found.loss
    result = getattr(found, "last_hidden_state", found)
    return (result.astype("float32") ** 2).mean()


def row(package, make, pod):
    """Return the line of the table for one program."""
    build, config, kwargs = make()
    with torch.device("meta"):
        module = build(config).to(torch.bfloat16)
    step = ts.xla.torch(module, kwargs=kwargs, optimizer=optax.sgd(1e-3), loss=loss)
    program = ts.xla.compile(
        step, *step.inputs, slice=pod, mesh={"data": 4}, until="schedule",
        **step.placed({}, batch=P("data")),
    )  # fmt: skip
    result = ts.simulate(program)
    million = sum(each.numel() for each in module.parameters()) / 1e6
    return (
        f"| {package} {version(package)} | `{make.__name__}` | {million:,.0f}M | {pod} | "
        f"{format_seconds(result.step_time_s)} | {result.mfu or 0:.1%} | "
        f"{result.unknown_share:.2%} | {ts.explain_lines(result).rows[0].place} |"
    )


def main():
    """Print the table of all programs."""
    for package, programs in PROGRAMS.items():
        for make in programs:
            try:
                print(row(package, make, *(sys.argv[1:] or ["v5e:2x2"])), flush=True)
            except Exception as error:  # of any package
                print(f"| {make.__name__} | {type(error).__name__}: {str(error)[:300]} |")


if __name__ == "__main__":
    main()
