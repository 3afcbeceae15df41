"""Photographs a report for the README: python -m docs.images.make RUN... (a run folder, or several)."""

import sys
import tempfile
from pathlib import Path

from benchmarks.page import chromium, opened

from dualscope.report import write_report

OUT = Path(__file__).parent / "report.png"


def photograph(file: Path, out: Path) -> None:
    with chromium() as browser:
        page = opened(browser, file, viewport={"width": 1380, "height": 1500}, color_scheme="light")
        page.wait_for_timeout(1500)  # charts near the screen are drawn
        page.screenshot(path=out)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        photograph(write_report(sys.argv[1:], Path(folder) / "report.html"), OUT)
    print(f"{OUT.name}: {OUT.stat().st_size / 1000:.0f} kB")
