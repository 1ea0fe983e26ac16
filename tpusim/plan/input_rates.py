"""Rates of input pipelines, each with its kind and source: what an `Input` has by default.

Seconds and bytes of CPU work are those of one thread on one vCPU. The kinds are those of the chips'
files: published, derived, measured, and assumed, which has a range.
"""

from typing import NamedTuple

from tpusim.base.units import format_bytes, format_rate, format_seconds


class InputRate(NamedTuple):
    """A number of an input pipeline with its source.

    value: SI; a plain number where `unit` is empty.
    range: the ends between which an assumed value may be.
    """

    value: float
    unit: str
    kind: str
    source: str
    range: tuple[float, float] | None = None

    def __str__(self) -> str:
        ends = "" if self.range is None else " ({} to {})".format(*map(self._shown, self.range))
        return f"{self._shown(self.value)}{ends}, {self.kind}: {self.source}"

    def _shown(self, value: float) -> str:
        if self.unit == "s":
            return format_seconds(value)
        if self.unit == "B":
            return format_bytes(value)
        return format_rate(value, self.unit) if self.unit else f"{value:g}"


TOKEN_BYTES = 4
"""Bytes of a token in a stored record, int32."""

RECORD_BYTES = {
    "jpeg": InputRate(
        110e3, "B", "derived", "ImageNet-1k (ILSVRC 2012): 138 GiB of 1.28 million training images"
    ),
    "audio": InputRate(
        211e3, "B", "derived", "LibriSpeech (openslr.org/12): 59.3 GB of FLAC, 281,241 utterances"
    ),
}
"""Stored bytes of a record by kind; one of tokens has `TOKEN_BYTES` for each of `plan.seq_len`."""

DECODE_SECONDS = {
    "tokens": InputRate(
        1e-4, "s", "assumed", "parsing and packing a record of int32 in numpy", (2e-5, 1e-3)
    ),
    "jpeg": InputRate(
        2.1e-3,
        "s",
        "measured",
        "500 x 375 pixels in 116 kB, decoded, cropped and resized to 224 x 224 by Pillow 13 "
        "(libjpeg-turbo 3.2) on one AMD EPYC vCPU",
    ),
    "audio": InputRate(
        1e-2, "s", "assumed", "FLAC of 12.3 s and its log-mel features", (3e-3, 3e-2)
    ),
}
"""Seconds that one worker takes to decode a record, by kind."""

KINDS = tuple(DECODE_SECONDS)
"""Kinds of records."""

_ZSTD = "README of facebook/zstd (0.6.0), lzbench on Silesia, Core i7-3930K at 4.5 GHz"
DECOMPRESS_RATES = {
    "zlib": InputRate(360e6, "B/s", "published", _ZSTD),
    "zstd": InputRate(915e6, "B/s", "published", _ZSTD),
    "snappy": InputRate(1600e6, "B/s", "published", _ZSTD),
    "lz4": InputRate(3100e6, "B/s", "published", _ZSTD),
}
"""Decompressed bytes per second of one worker, by codec."""

COMPRESSION_RATIOS = {
    "zlib": InputRate(2.730, "", "published", _ZSTD),
    "zstd": InputRate(2.877, "", "published", _ZSTD),
    "snappy": InputRate(2.091, "", "published", _ZSTD),
    "lz4": InputRate(2.101, "", "published", _ZSTD),
}
"""Bytes before over bytes after compression, of text and binaries; JPEG and FLAC shrink by none."""

STORED_COMPRESSED = ("jpeg", "audio")
"""Kinds whose records a codec makes no smaller."""

READ_LATENCY = InputRate(
    0.05,
    "s",
    "assumed",
    "first byte of a read from an object store nearby",
    (0.02, 0.1),
)
READER_BANDWIDTH = InputRate(
    210e6,
    "B/s",
    "published",
    "200 MiB/s of a single stream from Google Cloud Storage "
    "(beginswithdata.com, 1 February 2024, google-cloud-storage-max-throughput)",
)
BATCH_RATE = InputRate(
    5e9,
    "B/s",
    "assumed",
    "copies of records into a batch by one thread: 6.2 GB/s is a memcpy of 100 MB on a Skylake "
    "server, a sixth of the 37.3 GB/s of 16 threads (tensorflow issue 17246, 20 March 2018), which "
    "leaves out the handling of records; numpy measured at 14.8 GB/s on an AMD EPYC, and "
    "1.6 GB/s is that of 2,650 images/s in f32 by a batch split on one thread of a Cloud TPU host "
    "(tensorflow commit 6285522, 29 March 2018)",
    (1.6e9, 15e9),
)


def rate_lines() -> list[str]:
    """Return the rates with their sources, a line each."""
    tables = {
        "bytes of a record": RECORD_BYTES,
        "decoding of a record": DECODE_SECONDS,
        "decompression": DECOMPRESS_RATES,
        "compression ratio": COMPRESSION_RATIOS,
    }
    named = [
        (f"{what}, {key}", rate) for what, each in tables.items() for key, rate in each.items()
    ]
    named += [("read_latency", READ_LATENCY), ("reader_bandwidth", READER_BANDWIDTH)]
    named += [("batch_rate", BATCH_RATE)]
    return [f"{name}: {rate}" for name, rate in named]
