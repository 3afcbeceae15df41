"""The page's numbers are the library's: compare()'s, a study's, and an exact dual's."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dualscope import Episode, Model, Task, compare
from dualscope.core.options import Options
from dualscope.core.spec import IN_CONTEXT, under_control
from dualscope.explorer import bench_cache
from dualscope.explorer.explorer import Explorer, learning_of
from dualscope.explorer.jobs import Watch
from dualscope.explorer.offer import Offer
from dualscope.explorer.screen_as_code import CONTROLS, share
from dualscope.explorer.state import State
from dualscope.learners.bench import Bench
from dualscope.learners.learner import LEARNERS, Learned, Learner
from dualscope.learners.response_bench import ResponseBench
from dualscope.metrics.measured_response import ResponseMeter
from dualscope.results.compare import Comparison
from dualscope.tasks import make_lesson
from tests.explorer.served import Served, state

CLOSE = 1e-6
NAMES = ["gd", "lcgd"]
LONG = [{"fields": {"text": "they found one bore and the letdown from the scene again."}, "label": 0}]
"""Examples that settings are chosen on are no longer than the longest query."""


def computed(explorer: Explorer, **more: Any) -> dict[str, dict[str, Any]]:
    told: list[dict[str, Any]] = []
    explorer.compute(State.model_validate(state(**more)), Watch(told.append))
    assert told[-1]["event"] == "done"
    return {e["learner"]: e for e in told if e["event"] == "learned" and e["control"] is None}


def compared(**more: Any) -> Comparison:
    """The same through the public door, on a model of its own."""
    given = state(**more)
    rows = [{**one["fields"], "label": given["labels"][one["label"]]} for one in given["demonstrations"]]
    asked = [{**one["fields"], "label": given["labels"][one["label"]]} for one in given["queries"]]
    task = Task.from_examples(rows, labels=given["labels"], template=given["template"])
    episode = Episode.of(task.train, asked, task=task)
    return compare(Model.load("embedded", dtype="auto"), episode, given["learners"], lr=given["rate"], per_head=True)


def same(page: dict[str, dict[str, Any]], wanted: Comparison) -> None:
    for name, trace in wanted.traces.items():
        found = torch.tensor(page[name]["probabilities"], dtype=torch.float64)
        assert (found - trace.label_logprobs.double().softmax(-1)).abs().max() <= CLOSE, name
        exits = torch.tensor(page[name]["exits"], dtype=torch.float64)
        assert trace.label_logprobs_at_layer is not None
        assert (exits - trace.label_logprobs_at_layer.double().softmax(-1)).abs().max() <= CLOSE, name
    for metric in ("sim_aou", "sim_am_delta"):
        layers = wanted.layers(metric)
        for name in NAMES:
            shown = np.array(page[name]["likeness"][metric]["layers"], float)
            np.testing.assert_allclose(shown, layers[name], rtol=0, atol=CLOSE)
    heads = [
        row["value"]
        for row in wanted.rows
        if row["learner"] == "gd" and row["metric"] == "sim_am_delta" and row["head"] is not None
    ]
    shown = np.array(page["gd"]["likeness"]["sim_am_delta"]["heads"], float).ravel()
    np.testing.assert_allclose(shown, heads, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("rate", [1.0, 0.03])
def test_the_page_and_compare_agree(explorer: Explorer, rate: float) -> None:
    same(computed(explorer, rate=rate), compared(rate=rate))


def test_they_agree_after_edits(explorer: Explorer) -> None:
    """Flip the last label, add a demonstration, drop one and turn them round, ask more: each screen is as if new."""
    shown = state()["demonstrations"]
    flipped = [*shown[:2], {**shown[2], "label": 0}]
    longer = [*shown, {"fields": {"text": "it was the worst scene."}, "label": 0}]
    asked = [*state()["queries"], {"fields": {"text": "we found the triumph."}, "label": 1}]
    computed(explorer)
    for more in (
        {"demonstrations": flipped},
        {"demonstrations": longer},
        {"demonstrations": list(reversed(shown[1:])), "queries": asked},
    ):
        same(computed(explorer, **more), compared(**more))


def test_only_the_changed_end_is_encoded(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large model's context; here every beginning is worth keeping. (In float64 it is exact: tests/models.)"""
    monkeypatch.setattr(bench_cache, "WORTH_KEEPING", 0)
    monkeypatch.setattr("dualscope.explorer.explorer.deciding_controls", lambda _: [])  # they read other contexts
    shown = state()["demonstrations"]
    model = explorer.model("embedded")
    computed(explorer, demonstrations=shown * 8, learners=[], focus="lcgd")
    before = model.counters["prefix tokens"]
    computed(explorer, demonstrations=[*shown * 7, *shown[:2], {**shown[2], "label": 0}], learners=[], focus="lcgd")
    assert model.counters["prefix tokens"] - before == 2  # the label and its separator
    few = {"demonstrations": [*shown[:2], {**shown[2], "label": 0}]}
    computed(explorer)
    found = torch.tensor(computed(explorer, **few)["in-context"]["probabilities"], dtype=torch.float64)
    wanted = compared(**few).traces["in-context"].label_logprobs.double().softmax(-1)
    assert (found - wanted).abs().max() <= 1e-5


def test_a_step_is_where_gd_is_after_so_many_demonstrations(explorer: Explorer) -> None:
    """Step k of the slider: GD taught the first k, against in-context learning of all."""
    page = computed(explorer, steps=2)
    shorter = compared(demonstrations=state()["demonstrations"][:2])
    whole = compared()
    found = torch.tensor(page["gd"]["probabilities"], dtype=torch.float64)
    assert (found - shorter.traces["gd"].label_logprobs.double().softmax(-1)).abs().max() <= CLOSE
    assert (found - whole.traces["gd"].label_logprobs.double().softmax(-1)).abs().max() > 1e-3
    context = torch.tensor(page["in-context"]["probabilities"], dtype=torch.float64)
    assert (context - whole.traces["in-context"].label_logprobs.double().softmax(-1)).abs().max() <= CLOSE


def words(explorer: Explorer, **more: Any) -> dict[str, Any]:
    told: list[dict[str, Any]] = []
    explorer.words(State.model_validate(state(**more)), Watch(told.append))
    return told[-1]


def test_weights_of_words_are_all_of_the_attention(explorer: Explorer) -> None:
    view = {"query": 0, "layer": 3, "head": 2}
    found = words(explorer, view=view)
    assert [r["learner"] for r in found["readings"]] == ["in-context", "zero-shot", "gd", "gd"]
    for reading in found["readings"]:
        total = sum(sum(part) for part in reading["weights"] if part is not None)
        assert total == pytest.approx(1, abs=1e-3)  # float32, and large logits; exact in tests/models
        for part, own in zip(found["parts"], reading["weights"], strict=True):
            assert own is None or len(own) == len(part["words"])
    text = "".join(word["text"] for word in found["parts"][-1]["words"])
    assert text == "Sentence: he showed the cliche by the house. Label:"


def test_the_duals_weights_are_those_of_the_exact_update(explorer: Explorer) -> None:
    """Slow and plain: what each training token adds to the value at the read position, from the recorded dual."""
    from dualscope.learners import Bench, Dual
    from dualscope.tasks import make_lesson

    model = Model.load("embedded", dtype="auto")
    given = State.model_validate(state())
    episode = Episode.draw(Task(given.config(), None), shots=3, queries=1)
    lesson = make_lesson(episode, model.tokenizer, model.max_positions)
    bench = Bench(model, lesson, want=frozenset({"dual", "layer_inputs"}))
    learned = bench.learned("gd", 1.0)
    dual, layer, head = Dual.of(learned.log), 2, 4
    x = learned.trace.extras["layer_inputs"][0, layer]
    rows = slice(head * model.head_dim, (head + 1) * model.head_dim)
    added = [
        float((dual.errors["value"][layer][t, rows] * (dual.inputs[layer][t] @ x)).norm())
        for t in range(len(dual.positions))
    ]
    found = words(explorer, view={"query": 0, "layer": layer, "head": head})["readings"][-1]["weights"]
    first = [a for a, d, p in zip(added, dual.demonstrations, dual.positions, strict=True) if d == 0 and p > 0]
    np.testing.assert_allclose(found[1][: len(first)], np.array(first) / sum(added), rtol=1e-4)
    assert found[1][len(first) :] == [0.0]  # the separator is in no training sequence


def test_run_as_a_study_gives_the_pages_numbers(explorer: Explorer, tmp_path: Path) -> None:
    from dualscope import Run, run_study
    from dualscope.studies.choices import settings_of
    from dualscope.studies.study import Study

    given = State.model_validate(state(task="embedded-sst2", learners=["gd", "lcgd", "task-vector"], queries=LONG))
    made = share(explorer, given)
    (tmp_path / "typed.yaml").write_text(made["task"])
    (tmp_path / "study.yaml").write_text(made["study"].replace("seeds: 5", "seeds: 1"))
    smaller = {"variants": ["trained"], "interventions": []}  # of what is looked at here
    run_study(Study.resolve(smaller, file=tmp_path / "study.yaml"), tmp_path / "run")
    rows = Run.open(tmp_path / "run").table(metric="sim_aou", variant="trained").to_pylist()
    told: list[dict[str, Any]] = []
    explorer.compute(given, Watch(told.append))
    pairs = [("gd", None), ("lcgd", None), *(("gd", control) for control in CONTROLS)]
    for name, control in pairs:
        page = next(
            e for e in told if (e.get("learner"), e.get("control")) == (name, control) and e["event"] == "learned"
        )
        mine = [row for row in rows if row["learner"] == under_control(name, control) and row["layer"] is not None]
        wanted = [row["value"] for row in sorted(mine, key=lambda row: row["layer"])]
        np.testing.assert_allclose(page["likeness"]["sim_aou"]["layers"], wanted, rtol=0, atol=CLOSE)
    vector = next(e for e in told if e.get("learner") == "task-vector" and e["event"] == "learned")
    [settings] = [json.loads(text) for text in settings_of(Run.open(tmp_path / "run")).values()]
    assert vector["chosen"].startswith(f"layer {settings['layer']}:")


@pytest.mark.parametrize("task", [None, "embedded-sst2"])
def test_the_python_it_shows_runs_and_agrees(
    explorer: Explorer,
    capsys: pytest.CaptureFixture[str],
    task: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also what learners choose for themselves: on the task's other examples, or leaving one demonstration out."""
    monkeypatch.chdir(tmp_path)  # where that code writes its task's file
    more: dict[str, Any] = {"task": task, "learners": ["gd", "task-vector"], "queries": LONG}
    code = share(explorer, State.model_validate(state(**more)))["python"]
    exec(compile(code, "the page's own code", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out.splitlines()
    page = computed(explorer, **more)
    for name in ("zero-shot", "in-context", "gd", "task-vector"):
        line = next(line for line in printed if line.startswith(f"{name} ["))
        found = torch.tensor(eval(line.removeprefix(f"{name} ")))  # our own output
        assert (found - torch.tensor(page[name]["probabilities"])).abs().max() <= CLOSE, name


def test_the_page_says_what_a_learner_has_chosen_and_on_what(explorer: Explorer) -> None:
    own = computed(explorer, learners=["gd", "task-vector"])
    assert own["gd"]["chosen"] is None
    assert own["task-vector"]["chosen"].endswith(": chosen by asking each demonstration after the others")
    more = {"learners": ["task-vector"], "task": "embedded-sst2", "queries": LONG}
    drawn = computed(explorer, **more)["task-vector"]["chosen"]
    assert drawn.startswith("layer ")
    assert drawn.endswith(": chosen on 200 other examples of the task")


def test_a_plugins_learner_can_be_shown(tmp_path: Path, forget: None) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dualscope import LEARNERS, Learned, Learner\n"
        "@LEARNERS.register('mine')\n"
        "class Mine(Learner):\n"
        "    '''Learns nothing.'''\n"
        "    def learn(self, bench, lr, options):\n"
        "        return Learned(bench.zero_shot)\n"
    )
    explorer = Explorer(Offer.of(tasks=["embedded-sst2"], plugins=[str(file)]))
    assert "mine" in [one["name"] for one in explorer.offer.learners()]
    page = computed(explorer, learners=["mine"], focus="mine")
    assert page["mine"]["probabilities"] == page["zero-shot"]["probabilities"]
    assert page["mine"]["role"] == "hypothesis"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise KeyError('lost')", "KeyError: 'lost'"),
        ("raise InputError('not here')", "not here"),
        (
            "return Learned(bench.zero_shot.map(lambda t: t * float('nan') if t.is_floating_point() else t))",
            "not finite",
        ),
    ],
)
def test_a_learner_that_fails_is_told_and_the_others_go_on(tmp_path: Path, forget: None, body: str, words: str) -> None:
    file = tmp_path / "broken.py"
    file.write_text(
        "from dualscope import LEARNERS, InputError, Learned, Learner\n"
        "@LEARNERS.register('broken')\n"
        "class Broken(Learner):\n"
        "    '''Fails.'''\n"
        "    def learn(self, bench, lr, options):\n"
        f"        {body}\n"
    )
    explorer = Explorer(Offer.of(tasks=["embedded-sst2"], plugins=[str(file)]))
    told: list[dict[str, Any]] = []
    given = state(learners=["broken", "gd"], focus="broken", view={"query": 0, "layer": 0, "head": 0})
    explorer.compute(State.model_validate(given), Watch(told.append))
    refused = next(e for e in told if e["event"] == "refused" and e["control"] is None)
    assert words in refused["reason"]
    learned = [e["learner"] for e in told if e["event"] == "learned" and not e["control"]]
    assert learned == ["zero-shot", "in-context", "gd"]
    assert told[-1]["event"] == "done"


ASKED = [
    {"fields": {"text": text}, "label": label}
    for text, label in (("he showed the cliche by the house.", 0), ("we found the triumph.", 1))
]


def told(explorer: Explorer, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    explorer.influence(State.model_validate(state(**more)), Watch(found.append))
    assert found[-1]["event"] == "done"
    return [event for event in found if event["event"] != "progress"]


def matrices(explorer: Explorer, **more: Any) -> dict[str, dict[str, Any]]:
    return {one["learner"]: one for one in told(explorer, **more) if one["event"] == "influence"}


def test_it_is_what_the_library_measures_on_the_same_lesson(explorer: Explorer) -> None:
    found = matrices(explorer, queries=ASKED)
    given = State.model_validate(state(queries=ASKED))
    model = Model.load("embedded", dtype="auto")
    episode = Episode.draw(Task(given.config(), None), shots=3, queries=2)
    bench = Bench(model, make_lesson(episode, model.tokenizer, model.max_positions))
    meter = ResponseMeter(ResponseBench(bench, "flip-one"))
    for learning in (IN_CONTEXT, learning_of("gd", given)):
        wanted = meter.measure(learning)
        assert wanted.queries is not None
        shown = found[learning.name]
        assert shown["demonstrations"] == [0, 1, 2]
        np.testing.assert_allclose(shown["values"], wanted.queries["influence"].to_pylist(), rtol=0, atol=1e-5)
    [alike] = [row["value"] for row in wanted.rows if row["metric"] == "response_influence"]
    assert found["gd"]["correlation"] == pytest.approx(alike, abs=1e-4)
    assert found["in-context"]["correlation"] is None


def test_it_is_what_flipping_by_hand_shows(explorer: Explorer) -> None:
    """The page's own answers with one label flipped, less those with none."""

    def log_odds(name: str, demonstrations: list[dict[str, Any]]) -> np.ndarray:
        events: list[dict[str, Any]] = []
        more = {"demonstrations": demonstrations, "queries": ASKED, "learners": ["gd"], "steps": 2}
        explorer.compute(State.model_validate(state(**more)), Watch(events.append))
        answer = next(e for e in events if e["event"] == "learned" and (e["learner"], e["control"]) == (name, None))
        shares = np.array([row[one["label"]] for row, one in zip(answer["probabilities"], ASKED, strict=True)])
        right = 0.999 * shares + 0.0005  # mixed with a little of the uniform
        return np.log(right / (1 - right))

    shown = state()["demonstrations"]
    flipped = [shown[0], {**shown[1], "label": 1}, shown[2]]
    found = matrices(explorer, queries=ASKED, steps=2)
    for name in ("in-context", "gd"):
        wanted = log_odds(name, flipped) - log_odds(name, shown)
        values = np.array(found[name]["values"])
        np.testing.assert_allclose(values[:, 1], wanted, rtol=0, atol=1e-4)
    assert np.abs(np.array(found["gd"]["values"])[:, 1]).max() > 1e-3
    # No step was taken on the third; what is read beside other draws is rounded as they are.
    assert np.abs(np.array(found["gd"]["values"])[:, 2]).max() < 1e-12
    assert np.abs(np.array(found["in-context"]["values"])[:, 2]).max() > 1e-3


def test_one_query_has_a_matrix_and_no_correlation(explorer: Explorer) -> None:
    found = matrices(explorer, focus="lcgd")
    assert list(found) == ["in-context", "lcgd"]
    assert found["lcgd"]["correlation"] is None
    assert np.shape(found["lcgd"]["values"]) == (1, 3)


def test_a_learner_that_diverges_is_named_and_in_context_learning_is_shown(explorer: Explorer, forget: None) -> None:
    @LEARNERS.register("diverging")
    class Diverging(Learner[Options]):
        """Leaves no number."""

        def learn(self, bench: Bench, lr: float | None, options: Options) -> Learned:
            return Learned(bench.zero_shot.map(lambda t: t * float("nan") if t.is_floating_point() else t))

    events = told(explorer, queries=ASKED, focus="diverging")
    assert [event["event"] for event in events] == ["influence", "refused", "done"]
    assert events[1]["learner"] == "diverging"
    assert "fails on 3 of 3 draws" in events[1]["reason"]


def test_the_server_streams_it(served: Served) -> None:
    answer = served.ask("/api/influence", {"page": "test", "state": state(queries=ASKED)})
    assert [e["learner"] for e in answer.events if e["event"] == "influence"] == ["in-context", "gd"]
    answer = served.ask("/api/influence", {"page": "test", "state": state(focus="nobody")})
    assert [e["event"] for e in answer.events] == ["failed"]
    assert "nobody" in answer.events[0]["reason"]
