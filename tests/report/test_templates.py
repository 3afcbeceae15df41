"""The page in a real browser: from disk, without a network, with every control used."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dualscope.report import write_report
from tests.report.look import Look
from tests.report.made import make_run

pytestmark = pytest.mark.browser


@pytest.fixture
def look(browser: Any, page: Path) -> Iterator[Look]:
    found = Look(browser, page)
    yield found
    found.page.close()


def test_opens_from_disk_and_draws_everything(look: Look) -> None:
    look.see_everything()
    sections = look.page.eval_on_selector_all("main > section", "all => all.map(one => one.id)")
    links = look.page.eval_on_selector_all(".top nav a", "all => all.map(one => one.hash.slice(1))")
    assert sections == links
    assert sections[0] == "verdict"
    assert {"accuracy", "prediction", "similarity", "layers", "gradients", "published"} <= set(sections)
    assert not {"alpha", "kendall", "axes"} & set(sections)  # nothing was measured for them
    assert look.page.query_selector_all("a[href^='#def-']")
    targets = look.page.eval_on_selector_all(
        "a[href^='#']", "all => all.filter(one => !document.getElementById(one.hash.slice(1))).map(one => one.hash)"
    )
    assert targets == []
    look.is_clean()


def test_tabs_by_mouse_and_keyboard(look: Look) -> None:
    tab = "#layers-sim_am-tab"
    look.page.click(tab)
    assert look.page.is_visible("#layers-sim_am-panel")
    assert look.page.is_hidden("#layers-sim_aou-panel")
    look.page.wait_for_selector("#layers-sim_am-panel svg.main-svg", state="attached")
    look.page.press(tab, "ArrowRight")
    assert look.page.is_visible("#layers-sim_am_delta-panel")
    assert look.page.evaluate("document.activeElement.id") == "layers-sim_am_delta-tab"
    look.page.press("#layers-sim_am_delta-tab", "Home")
    assert look.page.is_visible("#layers-sim_aou-panel")
    look.is_clean()


def test_tasks_are_filtered(look: Look) -> None:
    look.see_everything()
    look.page.uncheck("#tasks input[value='subj']", force=True)
    assert look.page.query_selector_all("[data-task='subj']")
    assert not any(one.is_visible() for one in look.page.query_selector_all("[data-task='subj']"))
    plot = "document.querySelector('#accuracies .plot')"
    assert look.page.evaluate(f"{plot}.data.flatMap(t => t.y).includes('subj')") is False
    look.page.click("#tasks input[value='sst2']", force=True)
    assert look.page.is_checked("#tasks input[value='sst2']")  # one always stays
    look.page.check("#tasks input[value='subj']", force=True)
    assert look.page.evaluate(f"{plot}.data.flatMap(t => t.y).includes('subj')") is True
    look.is_clean()


@pytest.mark.slow
def test_series_are_switched_off_and_on(look: Look) -> None:
    look.see_everything()
    look.page.click("#similarity summary")
    key = "#similarity-sim_aou [data-series='gd']"
    names = "document.querySelector('#similarity-sim_aou .plot').data.map(t => t.name)"
    look.page.wait_for_selector("#similarity-sim_aou svg.main-svg", state="attached")
    look.page.click(key)
    assert "gd" not in look.page.evaluate(names)
    look.page.click(key)
    assert "gd" in look.page.evaluate(names)


@pytest.mark.slow
def test_light_and_dark(browser: Any, page: Path) -> None:
    look = Look(browser, page, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = look.page.evaluate(ground)
    look.see_everything()
    look.page.click("#theme")
    light = look.page.evaluate(ground)
    assert sum(map(int, dark[4:-1].split(","))) < 200 < 600 < sum(map(int, light[4:-1].split(",")))
    font = look.page.evaluate("document.querySelector('#accuracies .plot').layout.font.color")
    assert font == "#5a6069"  # charts follow
    look.is_clean()
    look.page.close()


def test_on_a_phone_nothing_sticks_out(browser: Any, page: Path) -> None:
    look = Look(browser, page, viewport={"width": 390, "height": 844})
    look.see_everything()
    assert look.page.evaluate("document.documentElement.scrollWidth") <= 390
    wide = look.page.eval_on_selector_all(
        ".plot", "all => all.filter(one => one.offsetWidth > 390).map(one => one.dataset.plot)"
    )
    assert wide == []
    look.is_clean()
    look.page.close()


def test_csv_has_the_numbers(look: Look) -> None:
    look.page.click("#accuracies summary")
    with look.page.expect_download() as caught:
        look.page.click("#accuracies .csv")
    lines = Path(caught.value.path()).read_text().splitlines()
    assert caught.value.suggested_filename == "accuracies.csv"
    assert lines[0].startswith("task,learner,trained,trained low,trained high,untrained")
    gd = next(line for line in lines if line.startswith("sst2,gd,"))
    assert gd.split(",")[2] == "1"


@pytest.mark.slow
def test_long_tables_come_when_asked_for(browser: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tasks=["<i>a</i>", "b"], layers=60, seeds=1)
    look = Look(browser, write_report([run], tmp_path / "long.html"))
    rows = "#layers-sim_aou tbody tr"
    assert look.page.query_selector_all(rows) == []
    look.page.uncheck("#tasks input[value='b']", force=True)
    look.page.click("#layers-sim_aou summary")
    look.page.wait_for_selector(rows)
    assert len(look.page.query_selector_all(rows)) == 2 * 2 * 2 * 60
    assert look.page.query_selector_all("#layers-sim_aou tbody i:text('a')") == []
    assert not any(one.is_visible() for one in look.page.query_selector_all(f"{rows}[data-task='b']"))
    look.is_clean()
    look.page.close()


def test_hostile_text_is_only_text(browser: Any, evil_run: Path, tmp_path: Path) -> None:
    look = Look(browser, write_report([evil_run], tmp_path / "evil.html"))
    for one in look.page.query_selector_all("details"):
        one.evaluate("one => one.open = true")
    look.see_everything()
    assert look.page.evaluate("window.stolen") is None
    assert "window.stolen" in look.page.inner_text("main")
    look.is_clean()
    look.page.close()


def test_hostile_names_are_only_text(browser: Any, tmp_path: Path) -> None:
    evil = "<img src=x onerror='window.stolen=1'>\"&amp;"
    run = make_run(tmp_path / "run", tasks=[evil, "sst2"], model=evil, labels=(evil, "b"), seeds=1)
    look = Look(browser, write_report([run], tmp_path / "evil.html"))
    look.see_everything()
    look.page.uncheck("#tasks input >> nth=0", force=True)
    shown = look.page.evaluate("document.querySelector('#accuracies .plot').data.flatMap(t => t.y)")
    assert set(shown) == {"sst2"}
    assert look.page.evaluate("window.stolen") is None
    look.is_clean()
    look.page.close()


@pytest.mark.slow
def test_prints_every_chart(look: Look) -> None:
    look.page.emulate_media(media="print")
    look.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    shown = "[...document.querySelectorAll('.plot')].filter(p => p.offsetParent)"
    assert look.page.evaluate(f"{shown}.every(p => p.querySelector('svg.main-svg'))")
    wide = look.page.evaluate(f"{shown}.map(p => p.querySelector('svg.main-svg').getBoundingClientRect().width)")
    assert max(wide) <= 688  # of A4 less its margins: nothing is cut, whatever the screen was
    assert look.page.eval_on_selector_all("[role=tab][aria-selected=false]", "all => all.every(t => !t.offsetParent)")
    assert look.page.is_hidden(".top")
    assert len(look.page.pdf()) > 10_000
    look.is_clean()


def test_the_answer_comes_first(look: Look) -> None:
    """Question and model, one sentence, the matrix: all on the first screen; the rule waits to be asked."""
    assert look.page.inner_text("h1") == "Is in-context learning gradient descent in tiny?"
    assert look.page.inner_text(".headline").startswith(
        "Likeness of the whole change. Above every control that was measured"
    )
    for thing in ("h1", ".headline", "table.matrix"):
        box = look.page.query_selector(thing).bounding_box()
        assert box["y"] + min(box["height"], 200) < 720, thing
    rule = "details:has(summary:text-is('The rule')) p"
    assert look.page.is_hidden(f"{rule} >> nth=0")
    look.page.click("summary:text-is('The rule')")
    assert look.page.is_visible(f"{rule} >> nth=0")
    look.is_clean()


@pytest.mark.slow
def test_charts_are_saved_one_by_one(look: Look) -> None:
    look.page.query_selector("#layers-sim_aou .plot").scroll_into_view_if_needed()
    look.page.wait_for_selector("#layers-sim_aou svg.main-svg", state="attached")
    for kind, start in (("svg", b"<svg"), ("png", b"\x89PNG")):
        with look.page.expect_download() as caught:
            look.page.click(f"#layers-sim_aou .panel >> nth=0 >> [data-save={kind}]")
        assert caught.value.suggested_filename == f"layers-sim_aou-sst2.{kind}"
        content = Path(caught.value.path()).read_bytes()
        assert content.startswith(start)
        if kind == "svg":
            assert b"gd" in content  # with its legend
    look.is_clean()


@pytest.mark.slow
def test_task_chips_stay_in_view(look: Look) -> None:
    look.page.query_selector("#provenance").scroll_into_view_if_needed()
    look.page.wait_for_timeout(100)
    box = look.page.query_selector("#tasks").bounding_box()
    assert 0 <= box["y"] < 120


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_ten_thousand_queries_are_looked_through(browser: Any, tmp_path: Path, scheme: str) -> None:
    run = make_run(tmp_path / "run", tasks=["sst2"], variants=["trained"], seeds=1, queries=10_000, texts=True)
    look = Look(browser, write_report([run], tmp_path / "q.html"), color_scheme=scheme)
    look.page.click("#queries summary")
    assert look.page.inner_text("#browser output") == "10000 of 10000 queries"
    rows = "#browser .list .row"
    assert len(look.page.query_selector_all(rows)) < 40  # only what is in view
    took = look.page.evaluate(
        """() => new Promise(done => {
            const list = document.querySelector("#browser .list"), began = performance.now();
            let step = 0;
            const go = () => { list.scrollTop = step * 5000; if (++step < 60) requestAnimationFrame(go);
                               else done(performance.now() - began); };
            go();
        })"""
    )
    assert took < 6000  # sixty jumps
    look.page.select_option("#browser [data-choose=show]", "disagree")
    assert look.page.inner_text("#browser output") == "0 of 10000 queries"
    look.page.select_option("#browser [data-choose=show]", "changed")
    changed = int(look.page.inner_text("#browser output").split()[0])
    assert 0 < changed < 10_000
    look.page.select_option("#browser [data-choose=show]", "all")
    look.page.fill("#browser [data-choose=text]", "evaluation:9999")
    look.page.click(f"{rows} >> nth=0")
    assert look.page.inner_text("#browser .one pre") == "sst2 asks evaluation:9999"
    look.is_clean()
    look.page.close()


@pytest.mark.slow
def test_a_phone_shows_every_column(browser: Any, page: Path) -> None:
    """A wide table is a list of cards there: every number of a row is inside the screen."""
    look = Look(browser, page, viewport={"width": 390, "height": 844})
    for one in look.page.query_selector_all("details"):
        one.evaluate("one => one.open = true")
    out = look.page.eval_on_selector_all(
        "table.cards td",
        "all => all.filter(c => c.offsetParent && c.getBoundingClientRect().right > 391).map(c => c.dataset.label)",
    )
    assert out == []
    assert look.page.evaluate("document.querySelectorAll('table.cards').length") > 1
    look.is_clean()
    look.page.close()


@pytest.mark.slow
def test_models_are_compared_on_one_page(browser: Any, tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"m{n}", model=f"m{n}", layers=n, seeds=3, parameters=10**n) for n in (3, 6)]
    look = Look(browser, write_report(runs, tmp_path / "two.html"))
    assert len(look.page.query_selector_all(".headline")) == 2
    assert len(look.page.query_selector_all("table.matrix tbody tr")) == 4  # two models, two learners
    look.page.query_selector("#compared-sizes .plot").scroll_into_view_if_needed()
    look.page.wait_for_selector("#compared-sizes svg.main-svg", state="attached")
    look.is_clean()
    look.page.close()


@pytest.mark.slow
def test_paper_shows_every_column(look: Look) -> None:
    look.page.set_viewport_size({"width": 720, "height": 1000})  # a sheet of A4 less its margins
    look.page.emulate_media(media="print")
    for one in look.page.query_selector_all("details"):
        one.evaluate("one => one.open = true")
    out = look.page.eval_on_selector_all(
        "#controls table td, table.matrix td",
        "all => all.filter(c => c.offsetParent && c.getBoundingClientRect().right > 721).length",
    )
    assert out == 0


WORDS, PAGES = 2000, 10
"""What a reader gives a report without being asked for more: visible words, and sheets of paper."""


@pytest.mark.slow
def test_the_default_report_is_short(browser: Any, tmp_path: Path) -> None:
    """The default study with fewer draws: its page has as many tasks, learners, controls and sections."""
    from dualscope import run_study
    from dualscope.studies import Study

    fewer = {"seeds": 3, "queries": 12, "shots": 16, "interventions": [{"kind": "relabel", "draws": 8, "queries": 12}]}
    run_study(Study.resolve(fewer, preset="quick"), tmp_path / "run", jobs=1)
    is_short(Look(browser, write_report([tmp_path / "run"], tmp_path / "report.html")))


def test_a_report_of_responses_is_short(browser: Any, response_run: Path, tmp_path: Path) -> None:
    is_short(Look(browser, write_report([response_run], tmp_path / "report.html")))


def is_short(look: Look) -> None:
    """What is folded does not count: who wants it opens it, and paper leaves it out."""
    look.see_everything()
    words = look.page.inner_text("body").split()
    assert len(words) <= WORDS
    assert "Cite" in words
    pages = re.findall(rb"/Type /Page\b", look.page.pdf(prefer_css_page_size=True))
    assert 2 <= len(pages) <= PAGES
    look.is_clean()
    look.page.close()


def test_what_is_folded_opens_where_it_is_pointed_to(look: Look) -> None:
    assert look.page.is_hidden("#similarity .tabs")
    look.page.click(".top nav a[href='#similarity']")
    look.page.wait_for_selector("#similarity .plot svg.main-svg")
    assert look.page.is_hidden("#def-accuracy")
    look.page.click("#accuracies a[href='#def-accuracy']")
    look.page.wait_for_selector("#def-accuracy")
    look.is_clean()


def test_lines_are_named_at_their_ends_and_no_name_lies_on_another(look: Look) -> None:
    look.see_everything()
    boxes = look.page.eval_on_selector_all(
        "#layers-sim_aou .panel:first-child .annotation",
        "all => all.map(one => { const box = one.getBoundingClientRect();"
        " return [one.textContent, box.top, box.bottom, box.right]; })",
    )
    assert {"gd", "lcgd"} <= {name for name, *_ in boxes}
    assert look.page.is_hidden("#layers-sim_aou .legend")
    plot = look.page.query_selector("#layers-sim_aou .plot").bounding_box()
    for above, below in pairwise(sorted(boxes, key=lambda box: box[1])):
        assert above[2] <= below[1] + 4, (above, below)
    assert all(right <= plot["x"] + plot["width"] + 1 for *_, right in boxes)


@pytest.mark.parametrize("width", [390, 1440])
def test_no_letter_of_a_chart_is_cut_off(browser: Any, plain_run: Path, tmp_path: Path, width: int) -> None:
    """Names above marks too: of the first row, and of a control near the right end."""
    look = Look(browser, write_report([plain_run], tmp_path / "r.html"), viewport={"width": width, "height": 900})
    look.see_everything()
    cut = look.page.eval_on_selector_all(
        "#controls-beside .plot",
        """all => all.flatMap(plot => {
            const room = plot.querySelector("svg.main-svg").getBoundingClientRect();
            const names = [...plot.querySelectorAll(".textpoint text")];
            return names.map(name => [name.textContent, name.getBoundingClientRect(), !!name.closest("[clip-path]")])
                .filter(([_, box, clipped]) => clipped || box.top < room.top || box.right > room.right);
        })""",
    )
    assert look.page.query_selector("#controls-beside .textpoint text") is not None
    assert cut == []
    look.page.close()


def test_the_answer_and_its_chart_share_the_first_sheet(browser: Any, response_run: Path, tmp_path: Path) -> None:
    look = Look(browser, write_report([response_run], tmp_path / "r.html"))
    look.see_everything()
    look.page.emulate_media(media="print")
    kept = "element => getComputedStyle(element).breakInside"
    assert look.page.eval_on_selector("#response-scale .panels", kept) == "auto"
    assert look.page.eval_on_selector("#response-scale .panel", kept) == "avoid"
    look.page.close()


def test_the_navigation_marks_nothing_at_the_top(browser: Any, response_run: Path, tmp_path: Path) -> None:
    look = Look(browser, write_report([response_run], tmp_path / "r.html"), viewport={"width": 1440, "height": 900})
    look.see_everything()
    look.page.wait_for_selector(".top nav a[aria-current]")
    look.page.evaluate("scrollTo(0, 0)")
    look.page.wait_for_selector(".top nav:not(:has(a[aria-current]))")
    look.page.close()


@pytest.mark.parametrize("width", [390, 320])
def test_no_word_is_broken_on_a_phone(browser: Any, response_run: Path, tmp_path: Path, width: int) -> None:
    look = Look(browser, write_report([response_run], tmp_path / "r.html"), viewport={"width": width, "height": 844})
    tall = look.page.evaluate(
        """() => [...document.querySelectorAll("table.matrix td")].map(cell => {
            const label = getComputedStyle(cell, "::before");
            return parseFloat(label.height) / parseFloat(label.lineHeight);
        })"""
    )
    assert len(tall) == 4
    assert max(tall) < 1.5  # a name that takes two lines was broken
    heads = look.page.eval_on_selector_all("table.matrix tbody th", "all => all.map(one => one.textContent)")
    assert any("gradient descent gd" in " ".join(head.split()) for head in heads)
    assert look.page.evaluate("document.documentElement.scrollWidth") <= width
    look.page.close()
