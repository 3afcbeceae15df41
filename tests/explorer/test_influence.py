"""What each demonstration taught: the library's own matrix, and what one sees by flipping labels by hand."""

from typing import Any

import numpy as np
import pytest

from dualscope import Episode, Model, Task
from dualscope.core.options import Options
from dualscope.core.spec import IN_CONTEXT
from dualscope.explorer.explorer import Explorer, learning_of
from dualscope.explorer.state import State
from dualscope.explorer.watch import Watch
from dualscope.learners.bench import Bench
from dualscope.learners.learner import LEARNERS, Learned, Learner
from dualscope.learners.response_bench import ResponseBench
from dualscope.metrics.measured_response import ResponseMeter
from dualscope.tasks import make_lesson
from tests.explorer.served import Served, state

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
