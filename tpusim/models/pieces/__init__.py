"""Pieces of models: each writes its operations into a graph and returns its result.

A piece takes a `GraphWriter` first and tensors next. The dimensions that it names (`heads`,
`head_dim`, `mlp`, `vocab`, ...) are declared by the model, `w.size(heads=16, head_dim=64)`.
"""

from tpusim.models.pieces.attention import (
    SOFTMAX_FLOPS,
    AttentionForm,
    attend,
    attention,
    projected,
    projections,
    relative_attention,
    rotary,
    seen,
)
from tpusim.models.pieces.bias import (
    biased,
    first_positions,
    learnt_positions,
    linear,
    segmented,
)
from tpusim.models.pieces.convolution import (
    batch_norm,
    channels,
    concatenated,
    convolution,
    device_norm,
    frozen_norm,
    images,
    instance_norm,
    mean_of_positions,
    normed,
    pool,
    relu,
    resized,
    silu,
    upsample,
)
from tpusim.models.pieces.dropout import dropout
from tpusim.models.pieces.embedding import embedding, layer_embedding
from tpusim.models.pieces.encoder import EncoderForm, encoder, position, probe_pool, representation
from tpusim.models.pieces.experts import EVEN, ExpertRouting, MoE, experts, gated_by_token
from tpusim.models.pieces.joint import (
    behind,
    gated,
    joined,
    modulated_norm,
    modulation,
    parted,
)
from tpusim.models.pieces.latent import Latent, latent_projections
from tpusim.models.pieces.loss import WHOLE_LOSS, LossForm, classification_loss, language_model_loss
from tpusim.models.pieces.masked import (
    chosen_positions,
    masked_language_model_loss,
    transformed,
)
from tpusim.models.pieces.mlp import ACTIVATION_FLOPS, activate, mlp
from tpusim.models.pieces.norms import NORM_KINDS, layer_norm, norm, norm_of_kind

__all__ = [
    "ACTIVATION_FLOPS",
    "EVEN",
    "NORM_KINDS",
    "SOFTMAX_FLOPS",
    "WHOLE_LOSS",
    "AttentionForm",
    "EncoderForm",
    "ExpertRouting",
    "Latent",
    "LossForm",
    "MoE",
    "activate",
    "attend",
    "attention",
    "batch_norm",
    "behind",
    "biased",
    "channels",
    "chosen_positions",
    "classification_loss",
    "concatenated",
    "convolution",
    "device_norm",
    "dropout",
    "embedding",
    "encoder",
    "experts",
    "first_positions",
    "frozen_norm",
    "gated",
    "gated_by_token",
    "images",
    "instance_norm",
    "joined",
    "language_model_loss",
    "latent_projections",
    "layer_embedding",
    "layer_norm",
    "learnt_positions",
    "linear",
    "masked_language_model_loss",
    "mean_of_positions",
    "mlp",
    "modulated_norm",
    "modulation",
    "norm",
    "norm_of_kind",
    "normed",
    "parted",
    "pool",
    "position",
    "probe_pool",
    "projected",
    "projections",
    "relative_attention",
    "relu",
    "representation",
    "resized",
    "rotary",
    "seen",
    "segmented",
    "silu",
    "transformed",
    "upsample",
]
