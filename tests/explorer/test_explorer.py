"""What the page tells and keeps: scenes, its sentence, undo, a pinned screen, and the page that is handed on."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualscope import InputError
from dualscope.explorer.deciding_controls import deciding_controls
from dualscope.explorer.explorer import Explorer, learning_of
from dualscope.explorer.jobs import Watch
from dualscope.explorer.offer import EMBEDDED, Offer, first_state
from dualscope.explorer.read_only_page import write_read_only_page
from dualscope.explorer.state import State
from tests.explorer.served import TEXTS, Served, state
from tests.explorer.visit import Visit

browser_test = pytest.mark.browser
SCENES = {
    "labels-matter": r"The labels (hardly )?matter( here)?: with 4 labels of 8 changed, in-context learning's "
    r"probability of the right answers moves by (\d+) points on average",
    "flip-them-all": r"With every label flipped, in-context learning changes its answer to (\d) of 3 queries, "
    r"gd to (\d); gd's answers move",
    "is-it-descent": r"Is it gradient descent\? .*(-?\.\d\d|1\.00) ",
}


@browser_test
@pytest.mark.parametrize("scene", SCENES)
def test_every_scene_ends_with_its_sentence(visit: Visit, scene: str) -> None:
    page = visit.page
    visit.adopt(rate=0.01)  # whatever was on the screen before
    page.click(f"[data-scene={scene}]")
    page.wait_for_selector("#scene[data-ended]")
    said = page.inner_text("#scene-text")
    found = re.match(SCENES[scene], said)
    assert found, said
    if scene == "labels-matter":
        moved = page.eval_on_selector_all(
            '#moved-table td[data-learner="in-context"]', "all => all.map(one => Math.abs(Number(one.dataset.moved)))"
        )
        assert int(found[3]) == round(100 * float(np.mean(moved)))
        assert said.startswith("The labels matter:")  # the embedded model learns from them
    if scene == "flip-them-all":
        assert visit.store("store.state.demonstrations.map(one => one.label)") == [
            1 - one["label"] for one in visit.store("store.start.state.demonstrations")
        ]
    if scene == "is-it-descent":
        assert visit.store("store.state.rate") == 1.0  # the card's, for this task
        likeness = {
            name: visit.store(f"store.answers.controls.get('{name}').likeness.sim_aou.mean")
            for name in visit.store("[...store.answers.controls].filter(([, c]) => !c.teaches).map(([n]) => n)")
        }
        own = visit.store("store.answers.learned.get('gd').likeness.sim_aou.mean")
        assert ("Not by this measure" in said) is (own <= max(likeness.values()))
        assert f"{max(likeness.values()):.2f}".replace("0.", ".") in said
    page.click("#scene-stop")
    assert page.is_hidden("#scene")


@browser_test
def test_ten_edits_are_taken_back_and_made_again(visit: Visit) -> None:
    page = visit.page
    visit.adopt()
    numbers = "store.onScreen().map(name => store.answers.learned.get(name)?.probabilities)"
    before, first = visit.store(numbers), visit.store("store.state")
    for i in (1, 2, 3):
        page.click(f"#demonstrations li:nth-child({i}) .label")
    page.click("#add-demonstrations")
    page.keyboard.type("we saw the letdown.")
    page.fill("#rate-exact", "0.5")
    page.keyboard.press("Enter")
    page.click("#demonstrations li:nth-child(2) .quiet")
    page.fill("#steps", "2")
    page.click("#queries .label")
    page.click("#layers button:nth-child(3)")
    page.select_option("#focus", "lcgd")
    visit.settle()
    after, last = visit.store(numbers), visit.store("store.state")
    assert after != before
    edits = visit.store("store.steps().back")
    assert edits >= 10
    while visit.store("JSON.stringify(store.state)") != json.dumps(first, separators=(",", ":"), ensure_ascii=False):
        assert page.is_enabled("#undo")
        page.click("#undo")
    visit.settle()
    assert visit.store(numbers) == before
    while page.is_enabled("#redo"):
        page.keyboard.press("Control+Shift+Z")
    visit.settle()
    assert visit.store("store.state") == last
    assert visit.store(numbers) == after


@browser_test
def test_a_screen_is_pinned_and_compared(visit: Visit) -> None:
    page = visit.page
    visit.adopt()
    page.click("#pin")
    page.wait_for_selector("#pinned:not([hidden])")
    assert page.inner_text("#pinned-differences") == "Nothing has changed since."
    before = visit.shares("gd")[0]
    page.click("#demonstrations li:nth-child(2) .label")
    page.fill("#rate-exact", "0.5")
    page.keyboard.press("Enter")
    visit.settle()
    assert page.inner_text("#pinned-differences") == "Since then: rate: 1 → 0.5; labels of demonstrations: 2."
    was, now = page.eval_on_selector_all(
        '#pinned-table tr[data-learner="gd"] td[data-value]', "all => all.map(one => Number(one.dataset.value))"
    )
    assert was == pytest.approx(before)
    assert now == pytest.approx(visit.shares("gd")[0])
    page.click("#swap")
    visit.settle()
    assert visit.store("store.state.rate") == 1
    assert page.inner_text("#pinned-differences") == "Since then: rate: 0.5 → 1; labels of demonstrations: 2."
    page.click("#unpin")
    assert page.is_hidden("#pinned")


@browser_test
@pytest.mark.slow
def test_steps_are_played_to_the_end(visit: Visit) -> None:
    visit.adopt()
    visit.page.evaluate(
        "import('/page/store.js').then(s => { window.seen = []; s.on('state', () => seen.push(s.state.steps)); })"
    )
    visit.page.click("#play")
    visit.until("document.getElementById('play').textContent === 'Play'")
    visit.settle()
    assert visit.page.evaluate("window.seen") == [1, 2, None]


@browser_test
def test_texts_stay_while_the_template_is_edited(visit: Visit) -> None:
    page = visit.page
    visit.adopt()
    page.click("#template")
    page.keyboard.press("Home")
    for _ in range("Sentence: {te".__len__()):
        page.keyboard.press("ArrowRight")
    for letter in ("Delete", "Delete", "l", "l"):  # {text} becomes {tell}, letter by letter
        page.keyboard.press(letter)
        assert visit.texts() == TEXTS
        assert page.evaluate("document.activeElement.id") == "template"
    visit.settle()
    assert page.input_value("#template") == "Sentence: {tell} Label:"
    assert visit.store("store.state.demonstrations[0].fields") == {"tell": TEXTS[0]}
    assert sum(visit.shares("gd")) == pytest.approx(1)
    page.fill("#template", "Sentence: {tell} by {author} Label:")
    assert visit.texts()[::2] == TEXTS
    page.fill("#template", "Sentence: {tell} Label:")
    assert visit.texts() == TEXTS
    visit.settle()
    visit.complaints = [text for text in visit.complaints if "400" not in text]


@browser_test
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_words_are_readable_at_every_colour(browser: Any, served: Served, scheme: str) -> None:
    visit = Visit(browser, served, color_scheme=scheme)
    pairs = visit.page.evaluate(
        """() => ("blue vermilion green grey purple orange sky navy olive l0 l1 l2 l3 l4 l5").split(" ").map(name => {
            const holder = document.createElement("p");
            holder.className = "card";
            const token = document.createElement("span");
            token.className = "token mark";
            token.style.setProperty("--own", `var(--${name})`);
            token.style.setProperty("--w", 1);
            holder.append(token);
            document.body.append(holder);
            const rgb = text => { // as it is drawn, over the card
                const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
                const context = canvas.getContext("2d");
                for (const one of [getComputedStyle(holder).backgroundColor, text]) {
                    context.fillStyle = one;
                    context.fillRect(0, 0, 1, 1);
                }
                return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
            };
            const style = getComputedStyle(token), found = [name, rgb(style.color), rgb(style.backgroundColor)];
            holder.remove();
            return found;
        })"""
    )

    def light(colour: list[int]) -> float:
        parts = np.array(colour) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    for name, ink, ground in pairs:
        low, high = sorted((light(ink), light(ground)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, name
        assert ink != ground
    visit.page.close()


@browser_test
def test_the_tick_is_never_cut_off(visit: Visit) -> None:
    long = "an extraordinarily long label word that no bar has room for"
    visit.adopt(labels=[long, "Positive"])
    cut = visit.page.eval_on_selector_all(
        ".bar .tick",
        """all => all.filter(one => {
            const tick = one.getBoundingClientRect(), track = one.closest(".bar").querySelector(".track");
            return tick.width < 4 || tick.right > track.getBoundingClientRect().left;
        }).length""",
    )
    assert cut == 0
    assert visit.page.locator(".bar .tick").count() == 4


@browser_test
def test_on_a_phone_the_answers_follow_the_edited_demonstration(browser: Any, served: Served) -> None:
    visit = Visit(browser, served, viewport={"width": 390, "height": 844})
    page = visit.page
    assert page.locator("#following").count() == 0
    page.click("#demonstrations li:nth-child(2) .label")
    visit.settle()
    box, item = (page.query_selector(one).bounding_box() for one in ("#following", "#demonstrations li:nth-child(2)"))
    assert item["y"] <= box["y"] <= item["y"] + item["height"]
    shares, said = (
        visit.store(f"store.answers.learned.get('gd').{what}[0]") for what in ("probabilities", "predictions")
    )
    assert f"{visit.store('store.state.labels')[said]} {100 * shares[said]:.0f} %" in page.inner_text(
        "[data-follows=gd]"
    )
    page.fill("#demonstrations li:nth-child(4) textarea", "we saw the marvel.")
    visit.settle()
    assert page.locator("#demonstrations li:nth-child(4) #following").count() == 1
    assert visit.overflow() <= 0
    page.close()


def test_the_band_has_what_decides_in_the_report(explorer: Explorer, tmp_path: Path) -> None:
    """The same names as the verdict's deciding controls of the study that the page offers."""
    from dualscope import run_study
    from dualscope.explorer.screen_as_code import share
    from dualscope.report.reported_run import ReportedRun
    from dualscope.studies import Study

    given = State.model_validate(
        state(
            task="embedded-sst2",
            learners=["gd"],
            queries=[{"fields": {"text": text}, "label": i % 2} for i, text in enumerate(TEXTS)],
        )
    )
    made = share(explorer, given)
    (tmp_path / "typed.yaml").write_text(made["task"])
    (tmp_path / "study.yaml").write_text(made["study"].replace("seeds: 5", "seeds: 1").replace("per_head: true\n", ""))
    run_study(Study.resolve(file=tmp_path / "study.yaml"), tmp_path / "run")
    (verdict,) = ReportedRun(tmp_path / "run").verdicts
    (answer,) = verdict["answers"]
    beside = ("shown", "likeness to a null", "beyond dilution")  # no controls of their own
    judged = {one["control"] for one in answer["comparisons"] if one["kind"] not in beside}
    assert {one.name for one in deciding_controls(learning_of("gd", given))} == judged
    told: list[dict[str, Any]] = []
    explorer.compute(given, Watch(told.append))
    shown = {one["control"]: one for one in told if one["event"] == "learned" and one["control"]}
    assert set(shown) == judged
    values = {one["control"]: one["control_value"]["mean"] for one in answer["comparisons"]}
    for name, one in shown.items():
        assert one["likeness"]["sim_aou"]["mean"] == pytest.approx(values[name], abs=1e-5), name
    band = next(one for one in told if one["event"] == "band")["lines"]["sim_aou"]
    layers = [one["likeness"]["sim_aou"]["layers"] for one in shown.values() if not one["teaches"]]
    np.testing.assert_allclose([line["y"] for line in band], [np.min(layers, 0), np.max(layers, 0)])


def test_the_best_rate_is_the_cards_or_is_searched(explorer: Explorer) -> None:
    told: list[dict[str, Any]] = []
    card = first_state(explorer.offer)
    explorer.rate(State.model_validate(card), Watch(told.append))
    assert told[-1] == {"event": "rate", "rate": 1.0, "why": "recorded in the model's card for embedded-sst2"}
    explorer.rate(State.model_validate(state()), Watch(told.append))
    assert told[-1]["rate"] > 0
    assert "each demonstration after the others" in told[-1]["why"]


def test_a_model_that_reads_english_is_given_english() -> None:
    assert not any("english" in name for name in Offer.of().tasks)
    offer = Offer.of(models=["some/other"])
    assert next(iter(offer.tasks)) == "english-reviews"
    assert "embedded-sst2" in offer.tasks
    task = offer.tasks["english-reviews"]
    texts = [one.fields["text"] for part in (task.train, task.evaluation) for one in part]
    assert len(set(texts)) == len(texts) == 88
    assert len(task.train) - 8 >= 50  # enough to choose settings on
    assert sum(one.label for one in task.train) in range(30, 43)
    assert offer.models[0] != EMBEDDED


@browser_test
def test_the_page_that_is_handed_on_works_from_disk_without_a_request(
    browser: Any, explorer: Explorer, tmp_path: Path
) -> None:
    saved = tmp_path / "saved.json"
    evil = "</script><img src=x onerror=document.title='caught'>"
    given = state(view={"query": 0, "layer": 2, "head": 4}, labels=[evil, "Positive"], learners=["gd"])
    saved.write_text(json.dumps(given))
    file = write_read_only_page(explorer, tmp_path / "screen.html", saved)
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    asked: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-settled]", state="attached")
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == [file.as_uri()]
    assert wrong == []
    assert page.title() == "dualscope explorer"
    told: list[dict[str, Any]] = []
    explorer.compute(State.model_validate(given), Watch(told.append))
    wanted = next(one for one in told if one["event"] == "learned" and one["learner"] == "gd" and not one["control"])
    shares = page.eval_on_selector_all('[data-learner="gd"] .bar', "all => all.map(one => Number(one.dataset.share))")
    assert shares == pytest.approx(wanted["probabilities"][0])
    assert page.inner_text("#saying").startswith("In-context learning answers")
    assert page.is_visible("#tokens .reading")
    before = page.inner_text("#bars")
    page.click("#layers button:nth-child(1)")
    assert page.is_hidden("#tokens")  # the words of another layer are not in this file
    for selector in ("#demonstrations .label", "#rate", "#model"):
        assert page.is_disabled(selector)
    for selector in ("#undo", "#study", "#scenes button", "#teach"):
        assert not page.is_visible(selector)
    assert page.inner_text("#bars") == before
    assert page.locator("main img, aside img").count() == 0
    page.close()


@pytest.mark.parametrize(
    ("content", "words"),
    [("nonsense", "not JSON"), ("[]", "not a state"), ('{"version": 1}', "model"), (None, "no such file")],
)
def test_what_is_no_saved_state_is_told_in_words(
    explorer: Explorer, tmp_path: Path, content: str | None, words: str
) -> None:
    file = tmp_path / "saved.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InputError, match=words):
        write_read_only_page(explorer, tmp_path / "screen.html", file)
    assert not (tmp_path / "screen.html").exists()
