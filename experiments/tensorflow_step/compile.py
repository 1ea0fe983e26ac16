"""Compile the Keras step for a slice, without a TPU, and print where its time goes.

    python compile.py --slice v5e:4x4
    python compile.py --slice v6e:4x4

Needs `pip install 'tpusim[xla,tensorflow]'`.
"""

import argparse
from collections import Counter

import tensorflow as tf
from jax.sharding import PartitionSpec as P
from train_step import decoder, training_step

import tpusim as ts
from tpusim.hardware import parse_slice
from tpusim.results import operation_of
from tpusim.results.lines import core_records
from tpusim.results.resources import operations_by_name


def compiled_step(args: argparse.Namespace) -> ts.xla.Compiled:
    """Return the step, with the batch and the largest dimension of each variable over `fsdp`."""
    devices = parse_slice(args.slice).devices
    model = decoder(args.layers, args.width, args.width // 128, args.vocab, args.length)
    tokens = tf.TensorSpec((args.batch, args.length), tf.int32)
    step = ts.xla.tensorflow(training_step(model), tokens, tokens)
    over = [P("fsdp"), P("fsdp"), *(sharded(each.shape, devices) for each in step.variables)]
    written = [spec for at, spec in enumerate(over) if at in step.donate]
    return ts.xla.compile(
        step, *step.inputs, slice=args.slice, mesh={"fsdp": devices}, donate=step.donate,
        in_shardings=tuple(over), out_shardings=(P(), *written), until=args.until,
    )  # fmt: skip


def sharded(shape: tuple[int, ...], devices: int) -> P:
    """Return the sharding of a variable: its largest dimension, if that can be divided."""
    largest = max(range(len(shape)), key=lambda dim: shape[dim], default=0)
    if not shape or shape[largest] % devices:
        return P()
    return P(*(None,) * largest, "fsdp")


def layer_times(result: ts.ReplayResult) -> Counter[str]:
    """Return the core's seconds by layer, as Keras names it, waits included."""
    known = operations_by_name(result.program_of(0))
    times: Counter[str] = Counter()
    for record in core_records(result.timeline):
        operation = known.get(operation_of(record))
        layer = operation.scope.partition("/")[0] if operation else record.label
        times[layer or "(no name)"] += record.total_ps * 1e-12
    return times


def main() -> None:
    """Compile, replay and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slice", default="v5e:4x4")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--vocab", type=int, default=32768)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--until", default="code", choices=("code", "schedule"))
    args = parser.parse_args()
    compiled = compiled_step(args)
    compiled.save(f"step_{args.slice.partition(':')[0]}.hlo.gz")
    result = ts.simulate(compiled)
    print(compiled)
    print(result)
    print("\nmost expensive layers")
    for layer, seconds in layer_times(result).most_common(5):
        print(f"  {layer:<22} {seconds * 1e3:7.2f} ms  {seconds / result.step_time_s:.1%}")


if __name__ == "__main__":
    main()
