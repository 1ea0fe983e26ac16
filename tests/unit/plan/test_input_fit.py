"""Rates of an input pipeline from samples, and the command that prints them."""

from pathlib import Path

import pytest

from tpusim.base import FileError, PlanError
from tpusim.cli.step_commands import input_rate as input_rates
from tpusim.plan import MeasuredStage, fit_stages


def read(reads: float, nbytes: float, latency: float = 0.05, rate: float = 200e6) -> MeasuredStage:
    """A sample of 8 threads whose reads take exactly as long as the formula says."""
    return MeasuredStage("read", 8, reads, nbytes, (reads * latency + nbytes / rate) / 8)


def test_exact_samples_give_back_their_rates() -> None:
    samples = [
        read(100, 1e9),
        read(1000, 1e9),
        MeasuredStage("decode", 4, 2000, 1e9, 1.0),
        MeasuredStage("decompress", 2, 10, 3e9, 1.5),
        MeasuredStage("batch", 1, 10, 5e9, 1.0),
    ]
    found = fit_stages(samples)
    assert found.keys == {
        "read_latency": pytest.approx(0.05),
        "reader_bandwidth": pytest.approx(200e6),
        "decompress_rate": pytest.approx(1e9),
        "batch_rate": pytest.approx(5e9),
        "decode_s": pytest.approx(2e-3),
    }
    assert all(stage.worst < 1e-9 for stage in found.stages)


def test_reads_of_one_size_are_all_bandwidth() -> None:
    found = fit_stages([read(10, 1e8), read(20, 2e8)]).keys
    assert found["read_latency"] == 0
    assert found["reader_bandwidth"] == pytest.approx(1e7 / (0.05 + 1e7 / 200e6))


def test_samples_that_disagree_say_by_how_much() -> None:
    samples = [MeasuredStage("decode", 1, 100, 1, seconds) for seconds in (1.0, 1.2)]
    (stage,) = fit_stages(samples).stages
    assert 0.08 < stage.worst < 0.12


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stage,threads,records,bytes\n", "the column seconds is missing"),
        ("stage,threads,records,bytes,seconds\n", "there is no sample"),
        (
            "stage,threads,records,bytes,seconds\nread,0,1,1,1\n",
            "sample 1 has threads = 0.0;",
        ),
        ("stage,threads,records,bytes,seconds\nread,1,1,1\n", "row 1 has 4 cells and the header 5"),
        ("stage,threads,records,bytes,seconds\nread,1,1,1,x\n", "row 1 has 'x' in the column sec"),
        ("stage,threads,records,bytes,seconds,bytes\n", "column bytes is in the header twice"),
        ("", "the column stage is missing"),
        ("\0", "NUL bytes"),
        ('stage,threads,records,bytes,seconds\n"read', "not a table of comma-separated values"),
        *(
            (f"stage,threads,records,bytes,seconds\nread,1,1,1,{number}\n", "1 has seconds = ")
            for number in ("1e-308", "5e-324", "1e300", "1e999", "nan", "-1", "-0.0")
        ),
        ("stage,threads,records,bytes,seconds\ndecod,1,1,1,1\n", "did you mean 'decode'?"),
    ],
)
def test_a_bad_sample_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "sample.csv"
    path.write_text(text, "utf-8")
    with pytest.raises((FileError, PlanError)) as caught:
        input_rates(str(path))
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=f"{tmp_path}: a folder; give a CSV file with the columns"):
        input_rates(str(tmp_path))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_on_any_system(tmp_path: Path, end: str) -> None:
    path = tmp_path / "sample.csv"
    lines = ("stage,threads,records,bytes,seconds", "decode,4,2000,1e9,1.0", "")
    path.write_bytes(end.join(lines).encode())
    assert "decode_s = 0.002 " in input_rates(str(path))


def test_the_command_prints_a_section_or_the_sources(tmp_path: Path) -> None:
    path = tmp_path / "sample.csv"
    path.write_text("stage,threads,records,bytes,seconds\ndecode,4,2000,1e9,1.0\n", "utf-8")
    said = "[input]\ndecode_s = 0.002  # 1 sample, at most 0.0% off"
    assert input_rates(str(path)) == said
    assert "decoding of a record, jpeg: 2.1 ms, measured: " in input_rates(None)
