"""Families of encoders; see `decoder_families` for the sources.

They are read as encoders that predict all positions. A `pooler_output` and the head that tells
whether one sentence follows another are left out: they are a column a sequence.
"""

from typing import Any

from tpusim.models.hf.family import ALL, ALL_ATTENTION, MLP, PLAIN, HfFamily

_BERT = ALL | {
    "kind": "encoder", "gated": False, "rotary": False, "norm": "layer", "pre_norms": False,
    "sum_norms": True, "embed_norm": True, "head_layer": True, "head_bias": True,
}  # fmt: skip
_ROTARY = _BERT | {"rotary": True}
_GATED = {"gated": True, "mlp_bias": False}
_PRE = {"pre_norms": True, "sum_norms": False}
_DROPPED = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
_DEFAULTS = _DROPPED | {
    "hidden_act": "gelu", "tie_word_embeddings": True, "type_vocab_size": 2,
    "max_position_embeddings": 512,
}  # fmt: skip
_TABLES = {"positions": "max_position_embeddings", "segments": "type_vocab_size"}
_SEGMENTS = {"segments": "type_vocab_size"}
_AS_WIDE = {"embedding_size": ("hidden_size", "a projection between embeddings and layers")}
_HEAD_BIAS = "the bias of the layer before the head"
_DECODER = {"is_decoder": {"kind": "decoder"}}
_MODERN: dict[str, Any] = {
    "norm": "layer-unshifted", "head_layer": True, "gated": True,
}  # fmt: skip
_MODERN_FLAGS: dict[str, dict[str, Any]] = {
    "attention_bias": ALL_ATTENTION, "mlp_bias": MLP, "decoder_bias": {"head_bias": True},
    "norm_bias": {"norm": "layer"},
}  # fmt: skip
_MODERN_DEFAULTS = {
    "hidden_activation": "gelu", "tie_word_embeddings": True, "decoder_bias": True,
    "local_attention": 128, "sliding_window_pattern": 3,
}  # fmt: skip
_FIRST_NORM = (
    "that the first norm is of the embeddings, before the residual stream begins, and not of the "
    "first layer"
)

ENCODER_KIND: tuple[HfFamily, ...] = (
    HfFamily(
        name="BERT",
        architectures=("BertForMaskedLM", "BertForPreTraining"),
        types=("bert",),
        layer=_BERT,
        flags=_DECODER,
        counts=_TABLES,
        defaults=_DEFAULTS,
    ),
    HfFamily(
        name="RoBERTa",
        architectures=("RobertaForMaskedLM", "XLMRobertaForMaskedLM", "CamembertForMaskedLM",
                       "Data2VecTextForMaskedLM"),
        types=("roberta", "xlm-roberta", "camembert", "data2vec-text"),
        layer=_BERT,
        flags=_DECODER,
        counts=_TABLES,
        defaults=_DEFAULTS,
    ),
    HfFamily(
        name="RoBERTa with norms before",
        architectures=("RobertaPreLayerNormForMaskedLM",),
        types=("roberta-prelayernorm",),
        layer=_BERT | _PRE,
        flags=_DECODER,
        counts=_TABLES,
        defaults=_DEFAULTS,
    ),
    HfFamily(
        name="XLM-RoBERTa XL",
        architectures=("XLMRobertaXLForMaskedLM",),
        types=("xlm-roberta-xl",),
        layer=_BERT | _PRE | {"embed_norm": False},
        flags=_DECODER,
        counts=_TABLES,
        defaults=_DEFAULTS | {"type_vocab_size": 1, "max_position_embeddings": 514},
    ),
    HfFamily(
        name="Megatron-BERT",
        architectures=("MegatronBertForMaskedLM", "MegatronBertForPreTraining"),
        types=("megatron-bert",),
        layer=_BERT | _PRE | {"embed_norm": False},
        flags=_DECODER,
        counts=_TABLES,
        defaults=_DEFAULTS,
    ),
    HfFamily(
        name="ERNIE",
        architectures=("ErnieForMaskedLM", "ErnieForPreTraining"),
        types=("ernie",),
        layer=_BERT,
        flags=_DECODER,
        counts=_TABLES,
        defaults=_DEFAULTS,
        left_out={"use_task_id": "the table of tasks"},
    ),
    HfFamily(
        name="ELECTRA",
        architectures=("ElectraForMaskedLM",),
        types=("electra",),
        layer=_BERT,
        flags=_DECODER,
        counts=_TABLES,
        defaults=_DEFAULTS | {"embedding_size": 128},
        only=_AS_WIDE,
    ),
    HfFamily(
        name="DistilBERT",
        architectures=("DistilBertForMaskedLM",),
        types=("distilbert",),
        layer=_BERT,
        counts={"positions": "max_position_embeddings"},
        defaults={"activation": "gelu", "tie_word_embeddings": True, "dropout": 0.1,
                  "attention_dropout": 0.1, "max_position_embeddings": 512},
        sizes={"layers": "n_layers", "embed": "dim", "mlp": "hidden_dim", "heads": "n_heads",
               "vocab": "vocab_size"},
        activation="activation",
    ),
    HfFamily(
        name="RoFormer",
        architectures=("RoFormerForMaskedLM",),
        types=("roformer",),
        layer=_ROTARY,
        flags=_DECODER,
        counts=_SEGMENTS,
        defaults=_DEFAULTS | {"max_position_embeddings": 1536, "rotary_value": False},
        only=_AS_WIDE,
        left_out={"rotary_value": "that values are rotated too"},
    ),
    HfFamily(
        name="Jina embeddings v3",
        architectures=("JinaEmbeddingsV3ForMaskedLM",),
        types=("jina_embeddings_v3",),
        layer=_ROTARY,
        counts=_SEGMENTS,
        defaults=_DEFAULTS | {"type_vocab_size": 1, "max_position_embeddings": 8194},
    ),
    HfFamily(
        name="GTE",
        architectures=("GteForMaskedLM",),
        types=("gte",),
        layer=_ROTARY | _GATED,
        counts=_SEGMENTS,
        defaults=_DEFAULTS | {"type_vocab_size": 1, "max_position_embeddings": 8192,
                              "attention_probs_dropout_prob": 0.0},
        always=(_HEAD_BIAS, "the bias of the last matrix of the MLP"),
    ),
    HfFamily(
        name="Nomic BERT",
        architectures=("NomicBertForMaskedLM",),
        types=("nomic_bert",),
        layer=_ROTARY | _GATED | {"qkv_bias": False, "out_bias": False},
        counts=_SEGMENTS,
        defaults=_DEFAULTS | {"hidden_act": "silu", "hidden_dropout_prob": 0.0,
                              "attention_probs_dropout_prob": 0.0,
                              "max_position_embeddings": 2048},
        always=(_HEAD_BIAS,),
    ),
    HfFamily(
        name="ModernBERT",
        architectures=("ModernBertForMaskedLM",),
        types=("modernbert",),
        layer=_MODERN | {"kind": "encoder"},
        flags=_MODERN_FLAGS,
        defaults=_MODERN_DEFAULTS,
        activation="hidden_activation",
        windows="first",
        window="local_attention",
        always=(_FIRST_NORM,),
    ),
    HfFamily(
        name="ModernBERT decoder",
        architectures=("ModernBertDecoderForCausalLM",),
        types=("modernbert-decoder",),
        layer=_MODERN,
        flags=_MODERN_FLAGS,
        defaults=_MODERN_DEFAULTS,
        activation="hidden_activation",
        windows="first",
        window="local_attention",
        always=(_FIRST_NORM,),
    ),
    HfFamily(
        name="EuroBERT",
        architectures=("EuroBertForMaskedLM",),
        types=("eurobert",),
        layer={"kind": "encoder"},
        flags={"attention_bias": ALL_ATTENTION, "mlp_bias": MLP | {"head_bias": True}},
        defaults=PLAIN,
    ),
)  # fmt: skip
"""Encoders of text."""
