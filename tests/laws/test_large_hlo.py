"""A file of 50 MB is replayed in 2 GiB, here and in the child together; by default one of 10 MB."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from extent import thorough
from hlo import large_text

pytest.importorskip("jaxlib.xla_client")

READS = """
import json, resource, sys
from tpusim.hardware import Slice
from tpusim.simulation import replay
from tpusim.compiler.compiled import load

result = replay(load(sys.argv[1]), Slice("v5e", "2x2"))
# Not ru_maxrss, which counts the process that started this one.
own = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(json.dumps({
    "step": result.step_time_s,
    "gib": [int(own.split()[1]) / 2**20, child / 2**20],
}))
"""


@pytest.mark.parametrize(("megabytes", "gib"), [thorough(10, 1), thorough(50, 2)])
def test_a_large_file_is_read_in_little_memory(megabytes: int, gib: float, tmp_path: Path) -> None:
    path = tmp_path / "large.hlo"
    path.write_text(large_text(megabytes * 1e6))
    run = [sys.executable, "-c", READS, str(path)]
    found = json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    assert found["step"] > 0
    assert sum(found["gib"]) < gib
