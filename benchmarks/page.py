"""How large a report is and how long it takes to open in a browser.

    python -m benchmarks.page [RUN...]

Without a run folder a study of 648 cells is computed first: the default one with 6 seeds, 20 queries and 4 shots.
Each opening is in a browser context of its own, from disk, until the page says that it is ready. Needs Chromium;
says so and exits 0 where there is none.
"""

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from dualscope import run_study
from dualscope.report import write_report
from dualscope.studies import Study

ARGUMENTS = "--no-sandbox --disable-gpu --disable-background-networking --no-first-run --disable-sync"
OPENINGS = 5


def installed() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator[Any]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=installed(), args=ARGUMENTS.split())
        try:
            yield browser
        finally:
            browser.close()


def opened(browser: Any, file: Path, **settings: Any) -> Any:
    page = browser.new_page(**settings)
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    return page


def measure(runs: Sequence[str], folder: Path) -> None:
    start = time.perf_counter()
    file = write_report(runs, folder / "report.html")
    print(f"written in {time.perf_counter() - start:.1f} s, {file.stat().st_size / 1e6:.1f} MB (at most 12)")
    times = []
    with chromium() as browser:
        for _ in range(OPENINGS):
            start = time.perf_counter()
            opened(browser, file).close()
            times.append(time.perf_counter() - start)
    print(f"opened in {', '.join(f'{t:.2f}' for t in times)} s: median {statistics.median(times):.2f} (below 3)")


def main() -> None:
    if installed() is None:
        print("skipped: no Chromium is installed")
        return
    with tempfile.TemporaryDirectory() as name:
        folder, runs = Path(name), sys.argv[1:]
        if not runs:
            study = Study.resolve({"seeds": 10, "queries": 20, "shots": 4}, preset="quick")
            result = run_study(study, folder / "run", jobs=None)
            print(f"{len(result.cells)} cells")
            runs = [str(folder / "run")]
        measure(runs, folder)


if __name__ == "__main__":
    main()
