"""A file of 50 MB is read within 15 seconds of the core's time and 2 GiB, here and in the child."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hlo import large_text

pytest.importorskip("jaxlib.xla_client")

READS = """
import json, resource, sys
from tpusim.xla.files import read_file
from tpusim.xla.memory import changes
from tpusim.xla.read import read_module

module = read_module(read_file(sys.argv[1])[1])
changes(module)
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps({
    "computations": len(module.computations),
    "gib": [each.ru_maxrss / 2**20 for each in used],
    "seconds": sum(each.ru_utime + each.ru_stime for each in used),
}))
"""


@pytest.mark.slow
def test_fifty_megabytes(tmp_path: Path):
    path = tmp_path / "large.hlo"
    path.write_text(large_text(50e6))
    run = [sys.executable, "-c", READS, str(path)]
    found = json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    print(found)
    assert found["computations"] > 5000
    assert found["seconds"] < 15
    assert sum(found["gib"]) < 2
