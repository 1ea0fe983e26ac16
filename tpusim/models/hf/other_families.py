"""Families that are read as other architectures than `Transformer`."""

from tpusim.models.hf.family import HfFamily

_T5_SIZES = {
    "layers": "num_layers", "embed": "d_model", "mlp": "d_ff", "heads": "num_heads",
    "head_dim": "d_kv", "vocab": "vocab_size",
}  # fmt: skip
_T5_BIASES = (
    "the biases of attention by distance, 32 numbers a head in the first layer of each stack",
)
_VIT_SIZES = {
    "layers": "num_hidden_layers", "embed": "hidden_size", "mlp": "intermediate_size",
    "heads": "num_attention_heads",
}  # fmt: skip
_VIT_ONLY = {
    "hidden_act": ("gelu", "another activation function than GELU"),
    "num_channels": (3, "images of other than three colours"),
}

OTHER_KIND: tuple[HfFamily, ...] = (
    HfFamily(
        name="T5",
        architectures=("T5ForConditionalGeneration", "MT5ForConditionalGeneration"),
        types=("t5", "mt5"),
        kind="encoder-decoder",
        counts={"decoder_layers": "num_decoder_layers"},
        defaults={"tie_word_embeddings": True, "dense_act_fn": "relu", "is_gated_act": False,
                  "dropout_rate": 0.1, "feed_forward_proj": "relu"},
        sizes=_T5_SIZES,
        activation="feed_forward_proj",
        always=_T5_BIASES,
    ),
    HfFamily(
        name="ViT",
        architectures=("ViTForImageClassification", "DeiTForImageClassification"),
        types=("vit", "deit"),
        kind="vision-transformer",
        flags={"!qkv_bias": {"qkv_bias": False}},
        counts={"image": "image_size", "patch": "patch_size"},
        defaults={"hidden_act": "gelu", "image_size": 224, "patch_size": 16, "qkv_bias": True,
                  "num_channels": 3},
        sizes=_VIT_SIZES,
        activation="",
        only=_VIT_ONLY,
    ),
)  # fmt: skip
