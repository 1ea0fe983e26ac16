"""What a report costs: without its page, nothing of the page is loaded or simulated.

And nothing of a comparison with the compiler, with the page or without.
"""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from pathlib import Path
import tpusim as ts
from tpusim.results import Result

def refuse(self, *args, **keys):
    raise AssertionError("advice was simulated for a page that is not written")

Result.advice = refuse
plan = ts.Plan(mesh={"fsdp": 16}, seq_len=64, global_batch=32)
model = ts.models.Transformer(layers=2, embed=128, mlp=256, heads=4, vocab=500)
ts.write_report(ts.simulate(model, plan, "v5e-16"), sys.argv[1], html=False)
print([name for name in sys.modules if name.startswith(("tpusim.report.html", "jinja2"))])
print((Path(sys.argv[1]) / "report.html").exists())
"""

WHOLE = """
import sys
import tpusim as ts
plan = ts.Plan(mesh={"fsdp": 16}, seq_len=64, global_batch=32)
model = ts.models.Transformer(layers=2, embed=128, mlp=256, heads=4, vocab=500)
ts.write_report(ts.simulate(model, plan, "v5e-16"), sys.argv[1])
rooms = ("export", "compiler_check", "compiler.hlo", "bounds", "sweeps", "searches", "serving")
others = (*(f"tpusim.{room}" for room in rooms), "pandas", "matplotlib.pyplot")
print([name for name in sys.modules if name.startswith(others)])
"""


def lines_of(script: str, out: Path) -> list[str]:
    """What a script prints in a process of its own."""
    command = [sys.executable, "-c", script, str(out)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return ran.stdout.splitlines()


@pytest.mark.thorough
def test_files_without_the_page_load_and_simulate_nothing_of_it(tmp_path: Path) -> None:
    assert lines_of(SCRIPT, tmp_path / "out") == ["[]", "False"]


@pytest.mark.thorough
def test_a_whole_report_loads_nothing_of_other_reports(tmp_path: Path) -> None:
    assert lines_of(WHOLE, tmp_path / "out") == ["[]"]
