"""Models by the `config.json` that Hugging Face's transformers writes."""

from tpusim.models.hf.dimensions import from_hf as from_hf
from tpusim.models.hf.dimensions import hf_architecture as hf_architecture
from tpusim.models.hf.dimensions import hf_dimensions as hf_dimensions
from tpusim.models.hf.hf_notes import hf_notes as hf_notes
