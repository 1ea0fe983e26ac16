"""Draw docs/report.png: the first screen of the report on experiments/bert_480b/run.toml.

    python docs/tools/screenshot.py [CHROMIUM]

Needs Chromium, `chromium` unless a path is given. The picture is reduced to 64 colours, as a page
of text and bars needs no more, which makes it a quarter of the size.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

import tpusim as ts

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs/report.png"
WIDTH, HEIGHT = 1200, 1440
"""Of the window, in pixels of the page."""
COLOURS = 64


def photograph(page: Path, picture: Path, chromium: str) -> None:
    """Write what a window of Chromium shows of a page."""
    flags = ("--headless", "--no-sandbox", "--hide-scrollbars", "--force-device-scale-factor=1")
    size = f"--window-size={WIDTH},{HEIGHT}"
    command = [chromium, *flags, size, f"--screenshot={picture}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True)


def main(arguments: list[str]) -> None:
    """Simulate the run, write its report, and photograph the page."""
    run = ts.read_run(ROOT / "experiments/bert_480b/run.toml")
    result = ts.simulate(run.model, run.plan, run.pod)
    with tempfile.TemporaryDirectory() as folder:
        taken = Path(folder) / "report.png"
        ts.write_report(result, folder)
        photograph(Path(folder) / "report.html", taken, *(arguments or ["chromium"]))
        with Image.open(taken) as image:
            image.convert("RGB").quantize(COLOURS).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
