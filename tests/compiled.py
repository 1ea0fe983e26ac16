"""A compiled program by hand, of which all is known."""

import tpusim as ts
from tpusim.compiler import Compiled, MemoryReport

HLO = b"HloModule jit_step, is_scheduled=true\n\nENTRY %main (p: f32[]) -> f32[] {\n}\n"
MEMORY = MemoryReport(arguments=3, outputs=2, aliased=1, heap=5, total=10)
WHOLE = Compiled(
    name="step",
    data=HLO,
    slice=ts.Slice("v5e", "2x2", num_slices=2),
    devices=tuple((slice_, x, y, 0, 0) for slice_ in (0, 1) for x in (0, 1) for y in (0, 1)),
    mesh=(("dcn_data", 2), ("fsdp", 4)),
    memory=MEMORY,
    versions=(("jax", "0.10.2"), ("libtpu", "0.0.42.1")),
    flags=("--xla_tpu_scoped_vmem_limit_kib=98304",),
    seconds=1.25,
    model_flops=3e15,
)
