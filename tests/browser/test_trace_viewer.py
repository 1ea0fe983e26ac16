"""Traces in speedscope (https://github.com/jlfwong/speedscope), the released page of its package.

`SPEEDSCOPE` is the folder `dist/release` of the npm package `speedscope`. The page reads the trace
itself; what it shows is then compared with the result.
"""

import gzip
import os
import threading
from collections.abc import Iterator
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from replays import small_replay
from reports import trace_bytes
from test_report_page import browser as browser
from test_report_page import result as report_result

from tpusim.report import trace
from tpusim.results import Result

pytestmark = pytest.mark.browser
KINDS = pytest.mark.parametrize("kind", ["flagship", "pipeline", "experts", "replay"])
WHOLE_S = 20_000
"""Milliseconds that the viewer has to import a trace."""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of each file."""


@pytest.fixture(scope="module")
def viewer() -> Iterator[str]:
    """The address of the viewer: its page loads scripts, which a file may not."""
    folder = Path(os.environ.get("SPEEDSCOPE", "none"))
    if not (folder / "index.html").is_file():
        pytest.skip("needs speedscope: npm pack speedscope, and SPEEDSCOPE=.../dist/release")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/index.html"
    server.shutdown()


@cache
def result(kind: str) -> Result:
    return small_replay() if kind == "replay" else report_result(kind)


@KINDS
@pytest.mark.parametrize("packed", [True, False], ids=["gz", "json"])
def test_speedscope_opens_a_trace_without_a_complaint(
    browser: Any, viewer: str, tmp_path: Path, kind: str, packed: bool
) -> None:
    content = trace_bytes(result(kind))
    file = tmp_path / ("trace.json.gz" if packed else "trace.json")
    file.write_bytes(content if packed else gzip.decompress(content))
    page = browser.new_page(viewport={"width": 1200, "height": 800})
    said: list[str] = []
    page.on("console", lambda each: said.append(each.text))
    page.on("pageerror", lambda error: said.append(f"error {error}"))
    page.goto(viewer)
    page.locator("input[type=file]").first.set_input_files(str(file))
    threads = {
        (event["pid"], event["tid"])
        for event in trace(result(kind))["traceEvents"]
        if event["ph"] == "X"
    }
    page.get_by_text(f"(1/{len(threads)})").wait_for(timeout=WHOLE_S)
    assert "/device:TPU:0" in page.inner_text("body")
    assert "Importing as Trace Event Format profile" in said
    known = ("speedscope v", "WebGL", "[.WebGL", "Importing as", "import: ")
    assert [text for text in said if not text.startswith(known)] == []
    page.close()
