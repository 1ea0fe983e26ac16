"""Remarks in the notes of a measured run that change nothing in its simulation.

They are about the measurement, or repeat what columns say. The patterns are those of whole
sentences, clauses or halves of clauses, as in `remark_rules.py`.
"""

from collections.abc import Mapping

_NUMBER = r"\d[\d.,]*k?"
_RATE = r"TFLOP/s(?:/chip|/device)?"
_SHORT_SLICE = r"v\d\w*-\d+"

_TIME = (
    rf"(?:run medians|runs) {_NUMBER}(?:[-,] ?{_NUMBER})*",
    r"(?:fastest|median) .*clean blocks?.*",
    rf"{_NUMBER}-{_NUMBER} s",
    rf"(?:about )?{_NUMBER} tokens/s(?:/device)?(?: and .*)?",
    r"(?:average|median) (?:over|of) .*",
    r"sum of wandb step durations .*",
    r"excludes eval time",
    r"(?:per-)?step(?:-| |s )(?:\d.*|log line)",
    r"step(?:s)? \d+(?:-\d+)?(?: printed .*| taken| [\d.-]+ s)?",
    r"\d+-step probe",
    r"\d+ samples",
    r"step from the printed .*",
    r"MLPerf log: .*",
    r"Step not logged separately",
    r"(?:rough steady train )?step (?:~[\d.]+ s if eval|= block x) .*",
    r"upper bound [\d.]+ s",
    r"Two digits only.*",
    r"Ten steps timed .*",
    r"profiler on for \d+ steps",
    r"on the printed TFLOP/s the step is .*",
    r"which is how the sibling rows were derived",
)
_COUNTING = (
    rf"printed {_NUMBER} {_RATE}(?: over the slice| and .*| \(.*\))?",
    rf"{_NUMBER} {_RATE}? ?\(.*\) by its own count",
    rf"{_NUMBER} TFLOP a step a device",
    rf"{_NUMBER} % (?:weights|\(text: .*\)|MFU by its own count|published counts recomputation)",
    r"(?:the .*)?MFU.*",
    r"not the MFU",
    r"Counting rule: .*",
    r"so 6N is used here",
    r"(?:FLOPs = )?6N.*",
    r"full attention",
    r"MaxText rule of \d+",
    r"HALF causal \+ sliding-window aware FLOPs.*",
    r"as the source counted .*",
    r"the sibling rows .*",
)
_OTHER_RUNS = (
    r"(?:Exact int8 |fp8 |Two-pod |one-pod |sequential )?partner (?:at|of) .*",
    r"(?:one-pod partner|single-slice log) .*",
    r"sequential partner .*",
    r"\d+ % (?:slower|faster) than .*",
    r"(?:Another run|The same recipe|(?:the )?same (?:numbers|batch|script|table:)) .*",
    r"same config said to be usable .*",
    r"HF fork [\d.]+ s",
    r"EP \d+ at batch .*",
    r"so not a pure pair .*",
    r"Small model: .*shows",
    r"Excellent .* series",
    r"vocab-dominated model|baseline",
    r"(?:same )?as (?:the \d+-chip row|.* but batch .*)",
    r"Text in one place quotes .*",
    r"batch \d+ needs .*",
)
_PROVENANCE = (
    r'".*"(?: \(6N\))?',
    r"synthetic data",
    rf"{_SHORT_SLICE}",
    r"branch commit .*",
    r"folder is called .*",
    r"MaxText tpu-recipes-.*|JAX [\d.]+",
    r"scripts at this commit .*",
    r"script sets enable_flash_attention=true",
    r"source sets dots_saveable .*",
    r"issue of .* predates .*|nothing offloaded .*",
    r"pdb(?: \d+)? from .*",
    r"(?:linked )?(?:config|script): (?:pdb|per_device) \d+",
    r"topology (?:is|=|inferred) .*",
    r"Slice from the run name",
    r"4 hosts of 8 cores .*",
    r"8x4x4 is 128 chips .*|taken as 128 chips .*",
    r"Remat and sharding read in .*",
    r"which matmuls are quantised is not stated",
    r"dropless or dropped not stated .*",
)
_CLOCK = (r"dvfs_p_state=7",)
"""The highest of a chip's power states, at which the clock of the catalogue is the one that runs.
No source gives the clocks of the others."""
_MEMORY = (
    r"(?:peak )?HBM .*",
    r"(?:temp|total) [\d.]+ GB",
    r"total_weights .*",
    r"model_size \d+",
    r"[\d.]+B parameters",
)
_COLUMNS = (
    r"\d+ heads of \d+ sharing one K/V head",
    r"2-D sharding of weights and activations",
    r"MHA (?:hd\d+|with head_dim .*)|head_dim \d+|so XLA attention|d_ff \dd",
    r"\d+ layers|n_\w+ \d+|block \d+|vocab \d+",
    r"(?:benchmark_tpu\.py: )?(?:context \d+|\d+ context)",
    r"DP over DCN|FSDP spans DCN|DCN axis as .*|DCN \[.*\]|\d+ slices = .*",
    r"(?:\d+M tokens (?:per|a) batch|GBS ?\d+).*",
    r"per-chip figures .*|\d+ JAX devices|num_chips \d+|\d+ per device|\d+ accelerators reported",
    r"(?:per-device )?batch \d+(?: a .*)?|[\d.]+ sequences a chip|PERCORE_EVAL_BATCH_SIZE .*",
    r"mesh \(.*|ici_fsdp -1|fsdp over all .*|PAX: ICI_MESH_SHAPE \[.*\] \(.*\)",
    r"weights sharded over .*",
    r"base\.yml defaults.*|gradient checkpointing and fsdp .* defaults",
    r"attention autoselected|(?:splash|flash) attention|attention_kernel \w+",
    r"Non-flash default attention and default remat assumed",
    r"remat (?:full|save|SAVE|custom|of|llama-scan-).*|gradient_checkpointing true",
    r".* wrapped with gradient checkpointing",
    r"model/remat=llama-scan: .*|model yaml: remat llama-scan-offload|scan over layers",
    r"scaling/llama-fsdp-tp\.yaml: checkpoint LlamaDecoderLayer",
    r"no (?:host )?offload",
    r"fp8_full qwix|int8 AQT|compute bf16|Parameters cast to bf16 for the step",
    r"megatron tensor parallelism with explicit psum",
    r"muon|(?:Muon adds )?Newton-Schulz matmuls \(5 steps\) (?:to|in) the update",
)
_ASSUMED = (r"random routing",)
_AS_PLANNED = (
    r"ragged sort on (?:the )?SparseCore",
    r"hoisted weight gather",
    r"no barriers",
)
"""Of experts that gather their tokens, MaxText picks the rows of a device's own alone, gathers
weights once for all chunks of tokens, and leaves the order of the chunks to the compiler
(moe.py, `use_ragged_sort` and `moe_chunk_barrier`; kernels/ragged/ragged_sort.py)."""

ABOUT: Mapping[str, tuple[str, ...]] = {
    "how the time was measured": _TIME,
    "how a source counts TFLOP/s and MFU": _COUNTING,
    "what other runs did": _OTHER_RUNS,
    "where the row comes from, and what its source leaves open": _PROVENANCE,
    "what memory and parameters a source printed": _MEMORY,
    "that cores ran at the chip's own clock": _CLOCK,
    "what columns, or the framework's defaults, say as well": _COLUMNS,
    "what is assumed of every run: experts are chosen evenly": _ASSUMED,
    "what a plan whose experts gather tokens does in any case": _AS_PLANNED,
}
