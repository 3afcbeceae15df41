"""The explorer in a real browser: everything that a visitor does, and nothing that leaves the machine."""

from typing import Any

import numpy as np
import pytest

from tests.explorer.served import TEXTS, Served, state
from tests.explorer.visit import Visit

pytestmark = pytest.mark.browser
SCRIPT = "<script>document.title='caught'</script><img src=x onerror=\"document.title='caught'\">"
IMAGE = "<img src=x onerror=document.title='caught'>"


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


TWO = [{"fields": {"text": text}, "label": i % 2} for i, text in enumerate(TEXTS[1::-1])]


def test_a_flipped_label_shows_how_both_answers_moved(visit: Visit) -> None:
    page = visit.page
    visit.adopt(queries=TWO)
    assert page.is_hidden("#moved")

    def right(learner: str) -> list[float]:
        shares = visit.store(f"store.answers.learned.get('{learner}').probabilities")
        return [row[one["label"]] for row, one in zip(shares, TWO, strict=True)]

    before = {learner: right(learner) for learner in ("in-context", "gd")}
    page.click("#demonstrations li:nth-child(2) .label")
    visit.settle()
    assert page.inner_text("#moved-flips") == "Changed: demonstration 2 (Negative → Positive)."
    moved = {learner: np.subtract(right(learner), before[learner]) for learner in before}
    for learner, changes in moved.items():
        shown = page.eval_on_selector_all(
            f'#moved-table td[data-learner="{learner}"]', "all => all.map(one => Number(one.dataset.moved))"
        )
        np.testing.assert_allclose(shown, changes, atol=1e-8)
    assert np.abs(moved["in-context"]).mean() > 0.005
    said = page.inner_text("#moved-sentence")
    assert said.startswith("When the labels change so, gd's answers move ")
    vectors = {
        learner: np.log(0.999 * np.array([after, after - change]) + 0.0005)
        - np.log(0.999 * (1 - np.array([after, after - change])) + 0.0005)
        for learner, change in moved.items()
        for after in [np.array(right(learner))]
    }  # of two labels: the log-odds, after and before
    one, other = (vectors[learner][0] - vectors[learner][1] for learner in ("in-context", "gd"))
    alike = float(one @ other / np.sqrt((one @ one) * (other @ other)))
    assert f": {alike:.2f},".replace("0.", ".") in said
    assert page.locator('[data-learner="gd"] .bar .was').count() == 2
    page.fill("#rate", "0")  # where gd never answered with the labels as they were
    visit.settle()
    assert "is not known at this rate" in page.inner_text("#moved-sentence")
    page.click("#put-back")
    visit.settle()
    assert page.is_hidden("#moved")
    page.click("#demonstrations li:nth-child(1) .label")
    visit.settle()
    assert "gd's hardly do" in page.inner_text("#moved-sentence")
    page.click("#from-here")
    visit.settle()
    assert page.is_hidden("#moved")


def test_what_did_each_demonstration_teach(visit: Visit) -> None:
    page = visit.page
    visit.adopt(queries=TWO)
    page.click("#teach")
    page.wait_for_selector('#influence-tables [data-learner="gd"]')
    visit.until("!document.getElementById('influence').hasAttribute('aria-busy')")
    asked = {"page": "beside", "state": state(queries=TWO)}
    wanted = {
        one["learner"]: one for one in visit.served.ask("/api/influence", asked).events if one["event"] == "influence"
    }
    assert list(wanted) == ["in-context", "gd"]
    for learner, one in wanted.items():
        shown = page.eval_on_selector_all(
            f'#influence-tables [data-learner="{learner}"] td', "all => all.map(one => Number(one.dataset.value))"
        )
        np.testing.assert_allclose(np.reshape(shown, (2, 3)), one["values"], atol=1e-5)
    said = page.inner_text("#influence-sentence")
    assert said.startswith("When one label changes at a time, gd's answers move ")
    assert f": {wanted['gd']['correlation']:.2f},".replace("0.", ".") in said
    page.hover('#influence-tables [data-learner="gd"] td >> nth=1')
    assert "demonstration 2, Negative flipped to Positive" in page.inner_text("#hint")
    page.click("#demonstrations li:nth-child(1) .label")
    visit.settle()
    assert page.inner_text("#influence-sentence") == "The screen has changed since: press again."


@pytest.mark.slow
def test_drag_to_reorder(visit: Visit) -> None:
    visit.adopt()
    before = visit.shares("in-context")
    visit.page.drag_and_drop("#demonstrations li:nth-child(1) .grip", "#demonstrations li:nth-child(3)")
    visit.settle()
    assert visit.texts() == [TEXTS[1], TEXTS[2], TEXTS[0]]
    assert visit.shares("in-context") != before


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_band_is_the_controls_reach(visit: Visit) -> None:
    visit.adopt(task="embedded-sst2")
    decide = "[...store.answers.controls.values()].filter(one => !one.teaches)"
    controls = visit.store(f"{decide}.map(one => one.likeness.sim_aou.layers)")
    low, high = visit.store("store.answers.band.lines.sim_aou.map(one => one.y)")
    assert len(controls) >= 4
    known = np.array(controls, dtype=float)  # a control may have no value: null is NaN
    np.testing.assert_allclose(low, np.nanmin(known, 0))
    np.testing.assert_allclose(high, np.nanmax(known, 0))


@pytest.mark.slow
def test_cancel(visit: Visit) -> None:
    page = visit.page
    many = [{"fields": {"text": text}, "label": i % 2} for i, text in enumerate(TEXTS * 20)]
    page.evaluate("given => import('/page/store.js').then(store => store.adopt(given))", state(demonstrations=many))
    visit.until("document.getElementById('status').textContent.includes('pass')")
    page.keyboard.press("Escape")
    assert page.inner_text("#status") == "stopped"
    visit.until("document.querySelectorAll('.learner.waiting').length === 0")
    visit.adopt()
    assert sum(visit.shares("gd")) == pytest.approx(1)


@pytest.mark.slow
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
    assert page.locator("main img, aside img, dialog img, main script, aside script, dialog script").count() == 0
    page.keyboard.press("Escape")


@pytest.mark.slow
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


def test_a_printed_number_has_one_word(visit: Visit) -> None:
    said = visit.page.evaluate(
        "import('/page/alike.js').then(one => [.7451, .7549].map(r => one.moves('gd', r, '1 is the same way')))"
    )
    assert said == ["gd's answers move as in-context learning's do: .75, where 1 is the same way."] * 2


def test_texts_are_whole_after_a_phone_was_turned(browser: Any, served: Served) -> None:
    visit = Visit(browser, served, viewport={"width": 1440, "height": 390})
    visit.page.set_viewport_size({"width": 390, "height": 844})
    visit.until(
        "[...document.querySelectorAll('#demonstrations textarea')].every(one => one.scrollHeight <= one.clientHeight)"
    )
    visit.is_clean()
    visit.page.close()


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 980, 1440])
def test_no_scroll_bar_at_any_width(browser: Any, served: Served, width: int) -> None:
    visit = Visit(browser, served, viewport={"width": width, "height": 800})
    visit.page.click("#layers button:nth-child(2)")
    visit.page.click("#heads-cells button:nth-child(1)")
    visit.page.wait_for_selector("#tokens-rows .reading")
    assert visit.overflow() <= 0
    visit.page.click("#teach")
    visit.page.wait_for_selector('#influence-tables [data-learner="gd"]')
    visit.page.click("#demonstrations li:nth-child(2) .label")
    visit.page.wait_for_selector("#moved:not([hidden])")
    visit.settle()
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


@pytest.mark.slow
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
