"""The FLOPs of a step as MaxText counts them (calculate_tflops_training_per_device).

Matrices count 6 FLOPs a weight and token, the head among them and the lookup not, and attention
three times the two products of its forward pass. Version 0.2.5 halves those for the causal mask,
older ones count them whole. A window counts its keys for each query here; 0.2.5 leaves out those
before the sequence, and older versions count all keys.
"""

from dataclasses import replace

from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan

TRAINING = 3
"""FLOPs of a step for each of its forward pass."""


def counted_tflops(model: Transformer, plan: Plan, pod: Slice) -> tuple[float, float]:
    """Return TFLOP of a device and step: with causal attention at half, and with all of it."""
    half, whole = (
        TRAINING * each.graph(batch=plan.global_batch, seq_len=plan.seq_len).model_flops()
        for each in (model, replace(model, kind="encoder"))
    )
    return half / pod.devices / 1e12, whole / pod.devices / 1e12


def counts_of(model: Transformer, plan: Plan, pod: Slice) -> str:
    """Return the sentence that says both numbers."""
    half, whole = counted_tflops(model, plan, pod)
    return (
        f"MaxText counts {half:,.1f} TFLOP per device and step, causal attention at half as "
        f"version 0.2.5 does, or {whole:,.1f} with whole attention"
    )
