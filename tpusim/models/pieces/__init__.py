"""Pieces of models: each writes its operations into a graph and returns its result.

A piece takes a `GraphWriter` first and tensors next. The dimensions that it names (`heads`,
`head_dim`, `mlp`, `vocab`, ...) are declared by the model, `w.size(heads=16, head_dim=64)`.
"""

from tpusim.models.pieces.attention import (
    SOFTMAX_FLOPS,
    AttentionForm,
    attend,
    attention,
    projections,
    rotary,
)
from tpusim.models.pieces.convolution import (
    batch_norm,
    channels,
    classification_loss,
    convolution,
    images,
    instance_norm,
    mean_of_positions,
    pool,
    relu,
    resized,
    upsample,
)
from tpusim.models.pieces.embedding import embedding
from tpusim.models.pieces.experts import EVEN, ExpertRouting, MoE, experts
from tpusim.models.pieces.latent import Latent, latent_projections
from tpusim.models.pieces.loss import WHOLE_LOSS, LossForm, language_model_loss
from tpusim.models.pieces.mlp import ACTIVATION_FLOPS, activate, mlp
from tpusim.models.pieces.norms import norm

__all__ = [
    "ACTIVATION_FLOPS",
    "EVEN",
    "SOFTMAX_FLOPS",
    "WHOLE_LOSS",
    "AttentionForm",
    "ExpertRouting",
    "Latent",
    "LossForm",
    "MoE",
    "activate",
    "attend",
    "attention",
    "batch_norm",
    "channels",
    "classification_loss",
    "convolution",
    "embedding",
    "experts",
    "images",
    "instance_norm",
    "language_model_loss",
    "latent_projections",
    "mean_of_positions",
    "mlp",
    "norm",
    "pool",
    "projections",
    "relu",
    "resized",
    "rotary",
    "upsample",
]
