"""Photographs a report for the README: python docs/images/make.py RUN... (a run folder, or several)."""

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from dualscope.report import write_report

OUT = Path(__file__).parent / "report.png"
ARGUMENTS = "--no-sandbox --disable-gpu --disable-background-networking --no-first-run --disable-sync"


def photograph(page_file: Path, out: Path) -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS.split())
        page = browser.new_page(viewport={"width": 1380, "height": 1500}, color_scheme="light")
        page.goto(page_file.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        page.wait_for_timeout(1500)  # charts near the screen are drawn
        page.screenshot(path=out)
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        photograph(write_report(sys.argv[1:], Path(folder) / "report.html"), OUT)
    print(f"{OUT.name}: {OUT.stat().st_size / 1000:.0f} kB")
