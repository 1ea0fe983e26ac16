"""What files and commands are read with: keys, sections, tables."""

from tpusim.base.errors import blame, nearest
from tpusim.base.plain_text import LONGEST_WORD, plain
from tpusim.hardware.catalogue import CHIP_SECTIONS, catalogue_rules
from tpusim.maxtext.counted_flops import counted_tflops
from tpusim.maxtext.features import noted, refused
from tpusim.maxtext.shipped_tables import RULES, defaults, ignored, models, unsimulated
from tpusim.models.hf.families import SIZE_KEYS, families, read_families, refused_types
from tpusim.models.model_keys import Biases, Norms, TransformerKeys
from tpusim.models.pieces import ACTIVATION_FLOPS, AttentionForm
from tpusim.plan.pipeline_schedules import SLOT_SCHEDULES
from tpusim.runfile.schema import ALL_FIELDS, FIELDS, VARIED, OrNone, wanted
from tpusim.runfile.serving_fields import SERVING_CHOICES, SERVING_FIELDS

__all__ = [
    "ACTIVATION_FLOPS",
    "ALL_FIELDS",
    "CHIP_SECTIONS",
    "FIELDS",
    "LONGEST_WORD",
    "RULES",
    "SERVING_CHOICES",
    "SERVING_FIELDS",
    "SIZE_KEYS",
    "SLOT_SCHEDULES",
    "VARIED",
    "AttentionForm",
    "Biases",
    "Norms",
    "OrNone",
    "TransformerKeys",
    "blame",
    "catalogue_rules",
    "counted_tflops",
    "defaults",
    "families",
    "ignored",
    "models",
    "nearest",
    "noted",
    "plain",
    "read_families",
    "refused",
    "refused_types",
    "unsimulated",
    "wanted",
]
