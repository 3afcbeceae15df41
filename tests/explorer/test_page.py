"""The explorer in a real browser: everything that a visitor does, and nothing that leaves the machine."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualscope.studies import Run
from tests.explorer.served import TEXTS, Served, state

pytestmark = pytest.mark.browser
PATIENCE = 180_000  # milliseconds, for machines that do something else as well
SCRIPT = "<script>document.title='caught'</script><img src=x onerror=\"document.title='caught'\">"
IMAGE = "<img src=x onerror=document.title='caught'>"


class Visit:
    """A page that was opened, what a visitor does on it, and whatever went wrong meanwhile."""

    def __init__(self, browser: Any, served: Served, **settings: Any) -> None:
        self.served, self.complaints = served, list[str]()
        self.requests: list[str] = []
        self.page = browser.new_page(**settings)
        self.page.set_default_timeout(PATIENCE)
        self.page.on("console", lambda message: self._console(message))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(served.address)
        self.settle()

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning", "trace"):
            self.complaints.append(message.text)

    def settle(self) -> None:
        self.page.wait_for_selector("html[data-ready]", state="attached")
        self.page.wait_for_selector("html[data-settled]", state="attached")

    def until(self, expression: str) -> None:
        """Not playwright's own waiting, which evaluates text: the page's policy forbids that."""
        for _ in range(PATIENCE // 20):
            if self.page.evaluate(expression):
                return
            self.page.wait_for_timeout(20)
        pytest.fail(f"never came true: {expression}")

    def store(self, expression: str) -> Any:
        """Something of the page's own store."""
        return self.page.evaluate(f"import('/page/store.js').then(store => {expression})")

    def adopt(self, **more: Any) -> None:
        self.page.evaluate(
            "given => import('/page/store.js').then(store => store.adopt(given))", state(**more)
        )
        self.settle()

    def shares(self, learner: str) -> list[float]:
        found = self.page.eval_on_selector_all(
            f'[data-learner="{learner}"] .bar', "all => all.map(one => Number(one.dataset.share))"
        )
        assert found
        return list(found)

    def texts(self) -> list[str]:
        return list(
            self.page.eval_on_selector_all("#demonstrations textarea", "all => all.map(one => one.value)")
        )

    def is_clean(self) -> None:
        assert self.complaints == []
        away = [
            url for url in self.requests if not url.startswith((self.served.origin + "/", "data:", "blob:"))
        ]
        assert away == []

    def overflow(self) -> int:
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))


@pytest.fixture
def visit(browser: Any, served: Served) -> Iterator[Visit]:
    found = Visit(browser, served, accept_downloads=True)
    yield found
    found.is_clean()
    found.page.close()


def test_type_three_demonstrations_and_a_query(visit: Visit) -> None:
    page = visit.page
    while page.locator("#demonstrations li").count() > 1:
        page.click("#demonstrations li:last-child .quiet")
    while page.locator("#queries li").count() > 1:
        page.click("#queries li:last-child .quiet")
    page.fill("#demonstrations textarea", TEXTS[0])
    for text in TEXTS[1:]:
        page.click("#add-demonstrations")
        page.keyboard.type(text)
    page.fill("#queries textarea", "he showed the cliche by the house.")
    visit.settle()
    assert visit.texts() == TEXTS
    for learner in ("zero-shot", "in-context", "gd", "lcgd"):
        assert sum(visit.shares(learner)) == pytest.approx(1)
    assert page.inner_text("#asked") == "Sentence: he showed the cliche by the house. Label:"
    assert page.locator("#exits-table tbody tr").count() >= 4


def test_flip_a_label_and_in_contexts_bars_move(visit: Visit) -> None:
    visit.adopt()
    before = {learner: visit.shares(learner) for learner in ("zero-shot", "in-context", "gd")}
    for i in (1, 2, 3):
        visit.page.click(f"#demonstrations li:nth-child({i}) .label")
    visit.settle()
    after = {learner: visit.shares(learner) for learner in before}
    assert after["zero-shot"] == before["zero-shot"]
    assert abs(after["in-context"][0] - before["in-context"][0]) > 0.01
    assert after["gd"] != before["gd"]


def test_drag_to_reorder(visit: Visit) -> None:
    visit.adopt()
    before = visit.shares("in-context")
    visit.page.drag_and_drop("#demonstrations li:nth-child(1) .grip", "#demonstrations li:nth-child(3)")
    visit.settle()
    assert visit.texts() == [TEXTS[1], TEXTS[2], TEXTS[0]]
    assert visit.shares("in-context") != before


def test_scrub_the_rate_and_the_steps(visit: Visit) -> None:
    visit.adopt()
    before = {learner: visit.shares(learner) for learner in ("in-context", "gd", "lcgd")}
    visit.page.fill("#rate", "0")
    visit.settle()
    assert visit.store("store.state.rate") == pytest.approx(1e-4)
    assert visit.shares("in-context") == before["in-context"]
    assert visit.shares("gd") == pytest.approx(visit.shares("zero-shot"), abs=1e-3)
    visit.page.fill("#rate-exact", "1")
    visit.page.keyboard.press("Enter")
    visit.settle()
    assert visit.shares("gd") == before["gd"]
    visit.page.fill("#steps", "1")
    visit.settle()
    assert visit.page.inner_text("#scrub output") == "1 of 3"
    assert visit.shares("gd") != before["gd"]
    visit.page.fill("#steps", "3")
    visit.settle()
    assert visit.shares("gd") == before["gd"]


def test_open_a_layer_a_head_and_the_words(visit: Visit) -> None:
    visit.adopt()
    page = visit.page
    assert page.is_hidden("#heads")
    page.click("#layers button:nth-child(3)")
    assert page.inner_text("#heads-title") == "Heads of layer 2: gd beside in-context"
    heads = visit.store("store.answers.learned.get('gd').likeness.sim_am_delta.heads[2]")
    assert page.locator("#heads-cells button").count() == len(heads) == 6
    page.click("#heads-cells button:nth-child(5)")
    page.wait_for_selector("#tokens-rows .reading:nth-child(4)")
    assert page.locator("#tokens-rows .reading").count() == 4
    page.hover("#tokens-rows .reading:nth-child(1) .token.label >> nth=0")
    assert page.inner_text("#hint").startswith("Positive\nweight ")
    weights = page.eval_on_selector_all(
        "#tokens-rows .reading:nth-child(1) .token", "all => all.map(one => Number(one.dataset.weight))"
    )
    assert sum(weights) == pytest.approx(1, abs=1e-3)
    page.click("#layers button:nth-child(3)")
    assert page.is_hidden("#heads")
    assert page.is_hidden("#tokens")
    page.locator("#likeness-plot .points path").nth(1).click(force=True)  # a point of a line
    page.wait_for_selector("#heads:not([hidden])")
    assert visit.store("store.state.view.layer") == 1


def test_the_band_is_the_controls_reach(visit: Visit) -> None:
    visit.adopt(task="embedded-sst2")
    controls = visit.store("[...store.answers.controls.values()].map(one => one.likeness.sim_aou.layers)")
    low, high = visit.store("store.answers.band.lines.sim_aou.map(one => one.y)")
    assert len(controls) == 3
    np.testing.assert_allclose(low, np.min(controls, 0))
    np.testing.assert_allclose(high, np.max(controls, 0))


def test_cancel(visit: Visit) -> None:
    page = visit.page
    many = [{"fields": {"text": text}, "label": i % 2} for i, text in enumerate(TEXTS * 20)]
    page.evaluate(
        "given => import('/page/store.js').then(store => store.adopt(given))", state(demonstrations=many)
    )
    visit.until("document.getElementById('status').textContent.includes('pass')")
    page.keyboard.press("Escape")
    assert page.inner_text("#status") == "stopped"
    visit.until("document.querySelectorAll('.learner.waiting').length === 0")
    visit.adopt()
    assert sum(visit.shares("gd")) == pytest.approx(1)


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


@pytest.mark.parametrize(
    "content", ["nonsense", "[]", '{"version": 1}', '{"version": 1, "model": "/etc/passwd"}']
)
def test_a_strangers_file_is_told_in_words(visit: Visit, tmp_path: Path, content: str) -> None:
    file = tmp_path / "strange.json"
    file.write_text(content)
    before = visit.store("store.state")
    visit.page.set_input_files("#file", file)
    visit.page.wait_for_selector("#trouble:not([hidden])")
    assert visit.store("store.state") == before


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


def test_run_as_a_study_is_pasted_and_run(visit: Visit, tmp_path: Path) -> None:
    visit.adopt(task="embedded-sst2")
    visit.page.click("#study")
    (tmp_path / "typed.yaml").write_text(visit.page.inner_text("#study-task"))
    (tmp_path / "study.yaml").write_text(visit.page.inner_text("#study-study"))
    command = shlex.split(visit.page.inner_text("#study-command"))
    assert command[:3] == ["dualscope", "run", "study.yaml"]
    done = subprocess.run(
        [sys.executable, "-m", "dualscope.cli", *command[1:], "--no-report"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = Run.open(tmp_path / "runs" / "typed").table(metric="sim_aou").to_pylist()
    for name in ("gd", "lcgd"):
        mine = [
            r
            for r in rows
            if r["learner"] == name and r["seed"] == 0 and r["layer"] is not None and r["head"] is None
        ]
        mine = [r for r in mine if not r.get("control") and r["reference"] == "in-context"]
        wanted = [row["value"] for row in sorted(mine, key=lambda row: row["layer"])]
        found = visit.store(f"store.answers.learned.get('{name}').likeness.sim_aou.layers")
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
    visit.page.keyboard.press("Escape")


def test_python_and_learners_open(visit: Visit) -> None:
    visit.page.click("#python")
    assert "compare(" in visit.page.inner_text("#python-code")
    visit.page.keyboard.press("Escape")
    visit.page.click("#choose-learners")
    visit.page.check('#dialog input[value="probe"]')
    visit.page.keyboard.press("Escape")
    visit.settle()
    assert sum(visit.shares("probe")) == pytest.approx(1)


def test_load_from_a_task_and_paste(visit: Visit) -> None:
    page = visit.page
    page.select_option("#load-task", "embedded-cb")
    page.fill("#load-shots", "4")
    page.click("#load")
    visit.until("document.querySelectorAll('#demonstrations li').length === 4")
    visit.settle()
    assert page.locator("#demonstrations li:first-child textarea").count() == 2  # premise and hypothesis
    assert len(visit.shares("in-context")) == 3
    visit.adopt()
    page.click("#paste")
    page.fill("#csv", 'we saw the marvel.,Positive\n"he met the blunder, again.",Negative')
    page.click("#paste-demonstrations")
    visit.until("document.querySelectorAll('#demonstrations li').length === 2")
    visit.settle()
    assert visit.texts()[1] == "he met the blunder, again."
    page.click("#paste")
    page.fill("#csv", "we saw the marvel.,Nobody")
    page.click("#paste-demonstrations")
    visit.until("document.querySelector('#dialog .refused').textContent.includes('Nobody')")
    page.keyboard.press("Escape")
    # The browser logs what was refused.
    visit.complaints = [text for text in visit.complaints if "400" not in text]


def test_markup_is_text_everywhere(visit: Visit) -> None:
    page = visit.page
    one = {"fields": {"text": SCRIPT}, "label": 0}
    visit.adopt(demonstrations=[one, one], queries=[one], labels=[IMAGE, "Positive"])
    page.fill("#template", SCRIPT + " {text} Label:")
    page.keyboard.press("Enter")
    visit.settle()
    page.click("#layers button:nth-child(1)")
    page.click("#heads-cells button:nth-child(1)")
    page.wait_for_selector("#tokens-rows .reading")
    page.click("#study")
    page.wait_for_selector("#study-task")
    assert page.title() == "dualscope explorer"
    assert (
        page.locator("main img, aside img, dialog img, main script, aside script, dialog script").count() == 0
    )
    page.keyboard.press("Escape")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(browser: Any, served: Served, scheme: str) -> None:
    visit = Visit(browser, served, color_scheme=scheme)

    def ground() -> str:
        return str(visit.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    dark = "rgb(21, 23, 26)"
    assert (ground() == dark) is (scheme == "dark")
    visit.page.click("#theme")
    assert (ground() == dark) is (scheme == "light")
    visit.is_clean()
    visit.page.close()


@pytest.mark.parametrize("width", [390, 980, 1440])
def test_no_scroll_bar_at_any_width(browser: Any, served: Served, width: int) -> None:
    visit = Visit(browser, served, viewport={"width": width, "height": 800})
    visit.page.click("#layers button:nth-child(2)")
    visit.page.click("#heads-cells button:nth-child(1)")
    visit.page.wait_for_selector("#tokens-rows .reading")
    assert visit.overflow() <= 0
    visit.page.select_option("#load-task", "embedded-cb")
    visit.page.click("#load")
    visit.page.wait_for_selector("#demonstrations li:first-child textarea:nth-child(2)")
    visit.settle()
    assert visit.overflow() <= 0
    visit.page.click("#study")
    visit.page.wait_for_selector("#study-task")
    assert visit.overflow() <= 0
    visit.is_clean()
    visit.page.close()


def test_keyboard_alone(visit: Visit) -> None:
    page = visit.page
    press = page.keyboard.press

    def reach(selector: str) -> None:
        for _ in range(200):
            if page.evaluate("selector => document.activeElement?.matches(selector) ?? false", selector):
                return
            press("Tab")
        pytest.fail(f"{selector} cannot be reached by Tab")

    visit.adopt()
    reach("#demonstrations li:nth-child(1) .grip")
    press("ArrowDown")
    visit.settle()
    assert visit.texts()[:2] == [TEXTS[1], TEXTS[0]]
    assert page.evaluate("document.activeElement.matches('#demonstrations li:nth-child(2) .grip')")
    press("Tab")
    press("Control+A")
    page.keyboard.type("we saw the letdown.")
    press("Tab")
    label = page.inner_text("#demonstrations li:nth-child(2) .label")
    press("Space")
    visit.settle()
    assert page.inner_text("#demonstrations li:nth-child(2) .label") != label
    assert "we saw the letdown." in visit.texts()
    reach("#rate")
    before = visit.shares("gd")
    for _ in range(5):
        press("ArrowLeft")
    visit.settle()
    assert visit.shares("gd") != before
    reach("#layers button:nth-child(2)")
    press("Enter")
    reach("#heads-cells button:nth-child(1)")
    press("Enter")
    page.wait_for_selector("#tokens-rows .reading")
    page.evaluate("document.activeElement.blur()")
    reach("#study")
    press("Enter")
    page.wait_for_selector("#study-task")
    press("Escape")
    assert not page.evaluate("document.getElementById('dialog').open")
