"""What a visitor takes along: a saved file, the address, a study and Python code."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualscope import Run
from tests.explorer.visit import Visit

pytestmark = pytest.mark.browser


def test_save_reload_and_open_give_the_same_numbers(visit: Visit, browser: Any, tmp_path: Path) -> None:
    visit.adopt(rate=0.3, steps=2)
    numbers = "store.onScreen().map(name => [name, store.answers.learned.get(name)?.probabilities])"
    before = visit.store(numbers)
    with visit.page.expect_download() as download:
        visit.page.click("#save")
    file = tmp_path / "saved.json"
    download.value.save_as(file)
    assert json.loads(file.read_text())["rate"] == 0.3
    visit.page.wait_for_selector("html[data-address=whole]", state="attached")
    visit.until("location.hash.length > 20")
    visit.page.reload()
    visit.settle()
    assert visit.store(numbers) == before
    other = Visit(browser, visit.served)
    assert other.store(numbers) != before
    other.page.set_input_files("#file", file)
    other.until("document.getElementById('rate-exact').value === '0.3'")
    other.settle()
    assert other.store(numbers) == before
    other.is_clean()
    other.page.close()


def test_a_strangers_file_is_told_in_words(visit: Visit, tmp_path: Path) -> None:
    before = visit.store("store.state")
    for content in ("nonsense", "[]", '{"version": 1}', '{"version": 1, "model": "/etc/passwd"}'):
        file = tmp_path / "strange.json"
        file.write_text(content)
        visit.page.evaluate("document.getElementById('trouble').hidden = true")
        visit.page.set_input_files("#file", file)
        visit.page.wait_for_selector("#trouble:not([hidden])")
        assert visit.store("store.state") == before


@pytest.mark.slow
def test_a_state_too_long_for_the_address_leaves_it_empty(visit: Visit) -> None:
    rng = np.random.default_rng(0)
    long = "".join(chr(0x4E00 + int(i)) for i in rng.integers(0, 5000, 3900))
    visit.page.fill("#queries textarea", long)
    visit.page.wait_for_selector("html[data-address=none]", state="attached")
    assert visit.page.evaluate("location.hash") == ""
    assert "Save" in visit.page.inner_text("#too-long")
    visit.settle()
    visit.page.fill("#queries textarea", "we saw the marvel.")
    visit.settle()
    visit.page.wait_for_selector("html[data-address=whole]", state="attached")
    assert visit.page.is_hidden("#too-long")


@pytest.mark.slow
def test_run_as_a_study_is_pasted_and_run(visit: Visit, tmp_path: Path) -> None:
    visit.adopt(task="embedded-sst2")
    visit.page.click("#study")
    (tmp_path / "typed.yaml").write_text(visit.page.inner_text("#study-task"))
    (tmp_path / "study.yaml").write_text(visit.page.inner_text("#study-study"))
    command = shlex.split(visit.page.inner_text("#study-command"))
    assert command[:3] == ["dualscope", "run", "study.yaml"]
    done = subprocess.run(
        [sys.executable, "-m", "dualscope.cli", *command[1:], "--no-report", "--jobs", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = Run.open(tmp_path / "runs" / "typed").table(metric="sim_aou", variant="trained").to_pylist()
    for name in ("gd", "lcgd"):
        mine = [
            r for r in rows if r["learner"] == name and r["seed"] == 0 and r["layer"] is not None and r["head"] is None
        ]
        mine = [r for r in mine if not r.get("control") and r["reference"] == "in-context"]
        wanted = [row["value"] for row in sorted(mine, key=lambda row: row["layer"])]
        found = visit.store(f"store.answers.learned.get('{name}').likeness.sim_aou.layers")
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
    visit.page.keyboard.press("Escape")


@pytest.mark.slow
def test_python_and_learners_open(visit: Visit) -> None:
    visit.page.click("#python")
    assert "compare(" in visit.page.inner_text("#python-code")
    visit.page.keyboard.press("Escape")
    visit.page.click("#choose-learners")
    visit.page.check('#dialog input[value="probe"]')
    visit.page.keyboard.press("Escape")
    visit.settle()
    assert sum(visit.shares("probe")) == pytest.approx(1)
