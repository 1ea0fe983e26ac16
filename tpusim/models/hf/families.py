"""The families of models that a config may describe, and those that cannot be simulated yet."""

from tpusim.models.hf.decoder_families import LLAMA_KIND
from tpusim.models.hf.encoder_families import ENCODER_KIND
from tpusim.models.hf.expert_families import EXPERT_KIND
from tpusim.models.hf.family import EXPERT_KEYS, HfFamily
from tpusim.models.hf.gpt_families import GPT_KIND
from tpusim.models.hf.latent_families import LATENT_KIND
from tpusim.models.hf.other_families import OTHER_KIND

FAMILIES: tuple[HfFamily, ...] = (
    *LLAMA_KIND, *GPT_KIND, *EXPERT_KIND, *LATENT_KIND, *ENCODER_KIND, *OTHER_KIND
)  # fmt: skip

UNSUPPORTED = {
    "state-space layers": ("mamba_d_state", "ssm_cfg", "state_size"),
    "linear attention": ("linear_num_value_heads",),
    "attention in chunks": ("attention_chunk_size",),
    "attention that picks its keys": ("index_topk",),
    "attention over another sequence": ("add_cross_attention", "is_encoder_decoder"),
    "attention in both directions": ("use_bidirectional_attention",),
    "relative positions": ("position_embedding_type",),
}
"""Features that cannot be simulated yet, and the keys that ask for them."""

READS = {
    "sound": (
        "audio_config", "audio_encoder_config", "sound_config", "num_mel_bins", "sampling_rate",
        "conv_kernel", "codebook_size", "acoustic_tokenizer_encoder_config", "encoder_config",
    ),
    "images": (
        "vision_config", "image_size", "patch_size", "num_channels", "vision_tower", "img_size",
        "backbone_config", "backbone", "num_image_tokens",
    ),
    "time series": ("prediction_length", "context_length", "horizon_length"),
}  # fmt: skip
"""What models read besides text or in place of it, and the keys of their configs that say so."""

READS_BY_NAME = {
    "sound": ("audio", "speech", "tts", "talker", "musicgen", "bark", "clap", "codec", "neucodec"),
    "images": (
        "vision", "image", "video", "vl", "ocr", "sam", "sam2", "sam3", "clip", "vqgan", "vqmodel",
    ),
}  # fmt: skip
"""The same, by parts of a `model_type`, where no key says it."""

OPTIONAL_FEATURES = {"experts": EXPERT_KEYS, "latent attention": ("kv_lora_rank",)}
"""Features that some families have, and the keys that ask for them."""

INACTIVE = (None, False, 0, 1, "absolute", "vision")
"""Values with which these keys have no effect: one expert is an MLP, and tokens of images alone may
attend in both directions."""

_STATE, _LINEAR = "state-space layers", "linear attention"
_CROSS, _PICKED = "attention over another sequence", "attention that picks its keys"
_TWO, _ODD = "attention that is the difference of two", "a projection of embeddings to the layers"
_IMAGES = "images in its sequence"
_OTHER_MODEL = "attention to the keys and values of another model"
_LOOPED = "layers that run several times"
_GATED, _CONV = "a gate on the result of attention", "convolutions in its layers"

REFUSED: dict[str, tuple[str, str]] = {
    "llama4": ("attention in chunks", "Mixtral"),
    "llama4_text": ("attention in chunks", "Mixtral"),
    "deepseek_v32": (_PICKED, "DeepSeek-V3"),
    "deepseek_v4": (_PICKED, "DeepSeek-V3"),
    "glm_moe_dsa": (_PICKED, "DeepSeek-V3"),
    "qwen3_next": (_LINEAR, "Qwen3 MoE"),
    "qwen3_5": (_LINEAR, "Qwen3"),
    "qwen3_5_text": (_LINEAR, "Qwen3"),
    "qwen3_5_moe": (_LINEAR, "Qwen3 MoE"),
    "qwen3_5_moe_text": (_LINEAR, "Qwen3 MoE"),
    "kimi_linear": (_LINEAR, "DeepSeek-V3"),
    "minimax": (_LINEAR, "Mixtral"),
    "bailing_hybrid": (_LINEAR, "DeepSeek-V3"),
    "olmo_hybrid": (_LINEAR, "OLMo 3"),
    "mamba": (_STATE, "Llama"),
    "mamba2": (_STATE, "Llama"),
    "falcon_mamba": (_STATE, "Falcon"),
    "falcon_h1": (_STATE, "Falcon"),
    "bamba": (_STATE, "Llama"),
    "jamba": (_STATE, "Mixtral"),
    "zamba": (_STATE, "Mistral"),
    "zamba2": (_STATE, "Mistral"),
    "nemotron_h": (_STATE, "Nemotron"),
    "granitemoehybrid": (_STATE, "Granite MoE, shared"),
    "recurrent_gemma": ("recurrent layers", "Gemma"),
    "rwkv": ("recurrent layers", "GPT-2"),
    "xlstm": ("recurrent layers", "Llama"),
    "lfm2": (_CONV, "Llama"),
    "lfm2_moe": (_CONV, "Mixtral"),
    "convbert": (_CONV, "BERT"),
    "squeezebert": (_CONV, "BERT"),
    "gemma3n": ("several residual streams", "Gemma 4"),
    "gemma3n_text": ("several residual streams", "Gemma 4"),
    "diffllama": (_TWO, "Llama"),
    "doge": ("a mask of attention that it learns", "Llama"),
    "jetmoe": ("experts in attention", "Mixtral"),
    "longcat_flash": ("two attentions a layer", "DeepSeek-V3"),
    "bitnet": ("norms within attention and MLP", "Llama"),
    "apertus": ("the activation function xIELU", "Llama"),
    "apertus1p5": ("the activation function xIELU", "Llama"),
    "apertus1p5_text": ("the activation function xIELU", "Llama"),
    "afmoe": (_GATED, "Qwen3 MoE"),
    "laguna": (_GATED, "Qwen3 MoE"),
    "mimo_v2_flash": ("heads that differ in windows", "GLM-4 MoE"),
    "gpt_neox_japanese": ("a bias in the last layer alone", "GPT-NeoX"),
    "mllama": (_CROSS, "Llama"),
    "whisper": (_CROSS, "T5"),
    "bart": (_CROSS, "T5"),
    "mbart": (_CROSS, "T5"),
    "pegasus": (_CROSS, "T5"),
    "marian": (_CROSS, "T5"),
    "blenderbot": (_CROSS, "T5"),
    "switch_transformers": ("experts that differ between encoder and decoder", "T5"),
    "umt5": ("positions of its own in each layer", "T5"),
    "albert": ("weights that all layers share", "BERT"),
    "rembert": (_ODD, "BERT"),
    "mobilebert": ("bottlenecks around its layers", "BERT"),
    "mpnet": ("relative positions", "BERT"),
    "deberta": ("relative positions", "BERT"),
    "deberta-v2": ("relative positions", "BERT"),
    "xlnet": ("relative positions", "BERT"),
    "funnel": ("layers that shorten the sequence", "BERT"),
    "longformer": ("attention that is windowed for some tokens only", "ModernBERT"),
    "big_bird": ("attention to random blocks", "ModernBERT"),
    "reformer": ("attention to what hashes alike", "ModernBERT"),
    "fnet": ("Fourier transforms in place of attention", "BERT"),
    "nystromformer": ("attention by landmarks", "BERT"),
    "yoso": ("attention to what hashes alike", "BERT"),
    "mra": ("attention at several resolutions", "BERT"),
    "layoutlm": ("positions on a page", "BERT"),
    "xmod": ("adapters for each language", "RoBERTa"),
    "roc_bert": ("embeddings of sound and shape", "BERT"),
    "xlm": ("embeddings of languages", "BERT"),
    "flaubert": ("embeddings of languages", "BERT"),
    "perceiver": (_CROSS, "T5"),
    "trocr": (_CROSS, "T5"),
    "blt": ("attention between bytes and patches of them", "Llama"),
    "zaya": ("attention in a compressed space, with convolutions", "Mixtral"),
    "lfm3": (_CONV, "Llama"),
    "inkling_text": (_CONV, "Qwen3 MoE"),
    "inkling2_text": (_CONV, "Qwen3 MoE"),
    "minimax_m3_vl_text": (_PICKED, "Mixtral"),
    "inkling2_loop_text": (_LOOPED, "Qwen3 MoE"),
    "dory": (_LOOPED, "OLMo 3"),
    "hrm_text": ("stacks that run several times", "Llama"),
    "moshi": ("a second decoder over codebooks of sound", "Llama"),
    "cpmant": ("relative positions", "Llama"),
    "bert-generation": ("embeddings without segments", "BERT"),
    "esm": ("embeddings that are rescaled by what is masked", "BERT"),
    "ibert": ("integer arithmetic in its layers", "BERT"),
    "luke": ("attention between words and entities", "RoBERTa"),
    "tapas": ("positions in a table", "BERT"),
    "esmc": ("norms of queries and keys without a shift, among norms with one", "ModernBERT"),
    "ultrabert": ("two matrices before the head", "EuroBERT"),
    "gemma4_assistant": (_OTHER_MODEL, "Gemma 4"),
    "gemma4_unified_assistant": (_OTHER_MODEL, "Gemma 4 Unified"),
    "emu3": (_IMAGES, "Llama"),
    "gemma4_unified": (_IMAGES, "Gemma 4 Unified"),
    "modernvbert": (_IMAGES, "ModernBERT"),
    "ultravbert": (_IMAGES, "EuroBERT"),
    "beam": (_GATED, "Qwen3 MoE"),
    "flint": ("windows that follow a pattern from the second layer on", "Qwen3 MoE"),
}
"""Known `model_type`s that cannot be simulated yet: the operation that is missing, and the nearest
family, whose row it would otherwise be like."""

REFUSED_CLASSES = {
    "Llama4ForCausalLM": "llama4",
    "Llama4ForConditionalGeneration": "llama4",
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "DeepseekV4ForCausalLM": "deepseek_v4",
    "Qwen3NextForCausalLM": "qwen3_next",
    "Qwen3_5ForCausalLM": "qwen3_5",
    "Qwen3_5MoeForCausalLM": "qwen3_5_moe",
    "MambaForCausalLM": "mamba",
    "Mamba2ForCausalLM": "mamba2",
    "JambaForCausalLM": "jamba",
    "NemotronHForCausalLM": "nemotron_h",
    "Gemma3nForConditionalGeneration": "gemma3n",
}
"""Architectures of those, for configs without a `model_type`."""
