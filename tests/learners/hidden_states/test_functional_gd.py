"""Gradient descent in function space: against loops, on the papers' constructions, under controls, as a plant."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dualscope.core.errors import InputError
from dualscope.core.spec import LearnerSpec
from dualscope.learners import Bench, identify
from dualscope.learners.hidden_states.functional_gd import FunctionalSteps, LayerStep, Point, functional_steps
from dualscope.learners.response_bench import ResponseBench, centred, function_part
from dualscope.metrics.measured_response import ResponseMeter
from dualscope.metrics.responses_of_draws import Responses
from dualscope.models import Model
from dualscope.models.capture.attention_kernel import Rules
from dualscope.tasks import Episode, Task, make_lesson
from dualscope.theory.functional import KERNELS, on_sphere
from dualscope.theory.identity import Draw
from dualscope.theory.linear_attention_step import gd_layer, gd_steps, tokens_of
from tests.learners import plain_hypotheses as plain
from tests.learners.setting import tiny_bench, tiny_lesson, tiny_task, wrapped
from tests.models import oracle as reading
from tests.models.tiny import FAMILIES, default_dtype

RATE = 0.7
SOME = ("gpt2", "llama", "gemma2", "qwen3", "olmo2", "gpt_neox", "xglm", "bloom", "codegen")


class Plainly:
    """One text at a time, the whole of it, every layer's writes put in by a hook: [layer][text] -> what is added."""

    def __init__(self, hf: Any, lesson: Any, rate: float, kernel: str, temperature: float) -> None:
        self.hf, self.rate, self.kernel, self.temperature = hf, rate, kernel, temperature
        self.texts = [[*lesson.bos, *d.prompt] for d in lesson.training]
        self.targets = [d.label[0] for d in lesson.training]
        self.at: list[list[dict[str, Tensor]]] = []  # [layer][demonstration]
        self.errors: list[list[Tensor]] = []
        writes: list[list[Tensor]] = [[] for _ in self.texts]
        for layer in range(len(plain.blocks_of(hf))):
            self.at.append([self.seen(text, layer, own) for text, own in zip(self.texts, writes, strict=True)])
            size = sum(float(one["stream"].square().sum()) for one in self.at[layer])
            size /= len(self.texts) * len(self.at[layer][0]["stream"])
            self.errors.append(
                [
                    self.rate * size * self.pull(one["stream"], target)
                    for one, target in zip(self.at[layer], self.targets, strict=True)
                ]
            )
            for one, own in zip(self.at[layer], writes, strict=True):
                own.append(self.written(layer, one))

    def pull(self, stream: Tensor, target: int) -> Tensor:
        point = stream.clone().requires_grad_()
        return torch.autograd.grad(reading.readout(self.hf, point).log_softmax(-1)[target], point)[0]

    def written(self, layer: int, one: dict[str, Tensor]) -> Tensor:
        found = torch.zeros_like(one["stream"])
        for k, pull in zip(self.kernels(layer, one), self.errors[layer], strict=True):
            found = found + k * pull
        return found

    def kernels(self, layer: int, one: dict[str, Tensor]) -> list[float]:
        others = self.at[layer]
        if self.kernel == "exp":
            cosines = [float(torch.cosine_similarity(one["stream"], other["stream"], dim=0)) for other in others]
            return [float(torch.tensor((c - 1) / self.temperature).double().exp()) / len(others) for c in cosines]
        found = [0.0] * len(others)
        for head in range(len(one["query"])):
            scores = torch.stack([self.score(one["query"][head], other["key"][head]) for other in others])
            shares = scores.softmax(0) if self.kernel == "attention" else scores / len(others)
            for i, share in enumerate(shares):
                found[i] += float(share) / len(one["query"])
        return found

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        config = self.hf.config
        found: Tensor = (query @ key) / getattr(config, "query_pre_attn_scalar", len(query)) ** 0.5
        if cap := getattr(config, "attn_logit_softcapping", None):
            found = torch.tanh(found / cap) * cap
        return found

    def seen(self, text: list[int], layer: int, writes: list[Tensor]) -> dict[str, Tensor]:
        """The stream that enters a layer at the last token, and the layer's queries and keys of it."""
        block = plain.blocks_of(self.hf)[layer]
        place = reading.PLACES.get(self.hf.config.model_type, reading._LLAMA)
        attention = block.get_submodule(place.attention)
        noted: dict[str, Tensor] = {}

        def entering(_: nn.Module, args: Any, kwargs: Any) -> None:
            noted["stream"] = (args[0] if args else kwargs["hidden_states"])[0, -1].detach().clone()

        def note(name: str) -> Any:
            def hook(_: nn.Module, __: Any, output: Tensor) -> None:
                noted[name] = output[0, -1].detach().clone()

            return hook

        with ExitStack() as stack:
            stack.enter_context(self.adding(text, writes))
            stack.callback(block.register_forward_pre_hook(entering, with_kwargs=True).remove)
            fused = hasattr(attention, "c_attn")
            for name in ("c_attn",) if fused else ("q_proj", "k_proj"):
                stack.callback(attention.get_submodule(name).register_forward_hook(note(name)).remove)
            reading.watch(self.hf, text)
            query, key = noted["c_attn"].chunk(3)[:2] if fused else (noted["q_proj"], noted["k_proj"])
        heads = self.hf.config.num_attention_heads
        shared = getattr(self.hf.config, "num_key_value_heads", heads)
        keys = key.view(shared, -1).repeat_interleave(heads // shared, 0)
        return {"stream": noted["stream"], "query": query.view(heads, -1), "key": keys}

    @contextmanager
    def adding(self, text: list[int], writes: list[Tensor]) -> Iterator[None]:
        with ExitStack() as stack:
            for layer, write in enumerate(writes):

                def hook(_: nn.Module, __: Any, output: Tensor, write: Tensor = write) -> Tensor:
                    changed = output.clone()
                    changed[0, len(text) - 1] += write
                    return changed

                stack.callback(plain.projection(self.hf, layer).register_forward_hook(hook).remove)
            yield

    def asked(self, lesson: Any, prompt: Any) -> tuple[Tensor, Tensor]:
        """A query's label log-probabilities, and attn_out of every layer."""
        text = [*lesson.bos, *prompt]
        writes: list[Tensor] = []
        for layer in range(len(self.at)):
            writes.append(self.written(layer, self.seen(text, layer, writes)))
        with self.adding(text, writes):
            _, layers = reading.watch(self.hf, text)
            return plain.label_logprobs(self.hf, lesson, text), torch.stack([one.attn_out[-1] for one in layers])


@pytest.mark.parametrize("kernel", ["attention", "linear", "exp"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_by_loops(family: str, kernel: str) -> None:
    """Labels of one token (all texts in one batch) and of several (texts of unequal length in batches of their own)."""
    model = wrapped(family)
    for labels in (("Negative", "Positive"), ("Negative", "Very Positive")):
        bench = Bench(model, tiny_lesson(model, shots=4, queries=3, task=tiny_task(labels=labels, n=60)))
        found = bench.learned("functional-gd", RATE, kernel=kernel, temperature=0.4).trace
        with default_dtype(torch.float64):
            by_hand = Plainly(model.hf, bench.lesson, RATE, kernel, 0.4)
            for prompt, logprobs, outputs in zip(
                bench.lesson.queries, found.label_logprobs, found.attn_out, strict=True
            ):
                expected = by_hand.asked(bench.lesson, prompt)
                torch.testing.assert_close(logprobs, expected[0], rtol=1e-8, atol=1e-8)
                torch.testing.assert_close(outputs, expected[1], rtol=1e-8, atol=1e-8)
        assert (found.attn_out - bench.zero_shot.attn_out).norm(dim=-1).min() > 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_content_scores_are_the_layers_own_where_nothing_is_between(family: str) -> None:
    """Of a text with itself: the score that its last token gives to itself, whatever the positions are like."""
    bench = tiny_bench(family, shots=4, queries=3)
    if family.startswith("deepseek") or family == "minicpm3":
        with pytest.raises(InputError, match="take kernel: exp"):
            functional_steps(bench, RATE, "linear")
        return
    steps = functional_steps(bench, 1e-30, "linear").steps  # so small a rate moves nothing
    taught = bench.lesson.training
    for row, one in enumerate(taught):
        _, layers = reading.watch(bench.model.hf, [*bench.lesson.bos, *one.prompt])
        for layer, step in zip(layers, steps, strict=True):
            scores = FunctionalSteps("linear", 1.0).weights(step.points, step.points, step.rules)
            expected = layer.scores[:, -1, -1].mean() / len(taught)
            # Rotary positions are turned in by float32's sines, whose squares sum to 1 but for that.
            torch.testing.assert_close(scores[row, row], expected, rtol=1e-6, atol=1e-6)


def step_of(kernel: Any, x: Tensor, left: Tensor, rate: float, temperature: float = 1.0) -> FunctionalSteps:
    """The learner's own step, from points x [n, d] with what is left to explain there [n]."""
    point = Point(x, x.unsqueeze(1), x.unsqueeze(1))
    return FunctionalSteps(kernel, temperature, [LayerStep(point, rate * left[:, None], Rules(1.0))])


def at(x: Tensor) -> Point:
    return Point(x, x.unsqueeze(1), x.unsqueeze(1))


@pytest.mark.parametrize(("attention", "kernel"), [("softmax", "attention"), ("linear", "linear"), ("exp", "exp")])
def test_on_chengs_transformer_every_layer_is_its_step(attention: str, kernel: str) -> None:
    draw, rate = Draw(3), 0.1
    x, asked, y = on_sphere(draw, 14), on_sphere(draw, 5), draw.normal(14)
    state = torch.cat([y, y.new_zeros(len(asked))])
    for _ in range(7):
        change = -rate * state[: len(x)] @ KERNELS[attention](x, torch.cat([x, asked]), 1.0)
        own = -step_of(kernel, x, state[: len(x)], rate).written(0, at(torch.cat([x, asked])))[:, 0]
        assert float(F.cosine_similarity(own, change, dim=0)) >= 0.99
        state = state + change


def test_on_von_oswalds_transformer_every_layer_is_its_step() -> None:
    draw, eta, n = Draw(5), 0.5, 12
    x, y, asked = draw.normal(n, 4), draw.normal(n, 1), draw.normal(4)
    start = torch.zeros(1, 4, dtype=torch.float64)
    tokens, layer = tokens_of(x, y, asked, start), gd_layer(start, eta, n)
    for _ in range(4):
        after = layer(tokens)
        inputs, left = tokens[:, :4], tokens[:-1, 4]
        # What the layer makes of a token are its inputs; the sign is the construction's, which keeps y - f.
        own = -step_of("linear", inputs[:-1], left, eta).written(0, at(inputs))[:, 0]
        torch.testing.assert_close(own, (after - tokens)[:, 4], rtol=1e-10, atol=1e-10)
        tokens = after
    torch.testing.assert_close(-tokens[-1, 4:], gd_steps(x, y, start, eta, 4) @ asked, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("family", SOME)
def test_it_learns_what_it_is_taught(family: str) -> None:
    """The demonstrations' own labels become likelier, of every architecture that has its own way with heads."""
    bench = tiny_bench(family, shots=5, queries=3)
    steps = functional_steps(bench, 0.3, "attention")
    assert len(steps.steps) == bench.model.n_layers
    first, last = steps.steps[0], steps.steps[-1]
    assert not torch.equal(first.pulls, last.pulls)
    asked = bench.asking(_own_questions(bench))
    with steps.applied(bench.model):
        after = bench.model.read(asked.lesson).label_logprobs
    taught = torch.tensor(asked.lesson.labels)[:, None]
    first_tokens = bench.model.read(asked.lesson).label_logprobs.gather(1, taught)
    assert float(after.gather(1, taught).mean()) > float(first_tokens.mean())


def _own_questions(bench: Bench) -> Any:
    from dualscope.choosing.spare_examples import asking_demonstrations

    return asking_demonstrations(bench.lesson)


def test_controls() -> None:
    bench = tiny_bench("llama", other=True, shots=6)
    own = bench.learned("functional-gd", RATE)
    for control in ("random-labels", "other-task", "redraw", "random-update"):
        other = bench.learned("functional-gd", RATE, control=control).trace
        assert not torch.allclose(other.attn_out, own.trace.attn_out, atol=1e-6), control
    # The order of the demonstrations is nothing to it.
    reordered = bench.learned("functional-gd", RATE, control="reorder").trace
    torch.testing.assert_close(reordered.attn_out, own.trace.attn_out, rtol=1e-8, atol=1e-8)
    random = bench.learned("functional-gd", RATE, control="random-update").change
    assert isinstance(own.change, FunctionalSteps)
    assert isinstance(random, FunctionalSteps)
    for mine, drawn in zip(own.change.steps, random.steps, strict=True):
        torch.testing.assert_close(mine.pulls.norm(dim=-1), drawn.pulls.norm(dim=-1))
        assert not torch.allclose(mine.pulls, drawn.pulls)


def test_the_rate_and_the_temperature_are_chosen_on_spare_examples() -> None:
    model = wrapped("gpt2")
    bench = Bench(model, tiny_lesson(model, shots=3, queries=4, task=tiny_task(n=180)))
    attention = bench.learned("functional-gd").choice
    assert attention is not None
    assert set(attention.settings) == {"lr"}
    exp = bench.learned("functional-gd", kernel="exp").choice
    assert exp is not None
    assert set(exp.settings) == {"lr", "temperature"}
    random = bench.learned("functional-gd", control="random-update").change
    assert isinstance(random, FunctionalSteps)


def test_planted_it_is_found_and_gradient_descent_is_not() -> None:
    """The queries after a null context, read by the model that it changed: what the instrument has to find."""
    embedded = Model.load("embedded", device="cpu")
    episode = Episode.draw(Task.load("embedded-sst2"), shots=16, queries=20, balanced=True)
    bench = Bench(embedded, make_lesson(episode, embedded.tokenizer, embedded.max_positions))
    meter = ResponseMeter(ResponseBench(bench, draws=8))
    own, gd = identify("functional-gd", {"lr": 3.16}), identify("gd", lr=1.0)
    plant = meter.planted(own)
    found = {one.name: _likeness(meter, plant, one) for one in (own, gd)}
    assert found["functional-gd"][0] > 0.6
    assert found["functional-gd"][1] > 0.6
    assert found["gd"][1] < 0.3


def _likeness(meter: ResponseMeter, plant: Responses, learning: LearnerSpec) -> list[float]:
    """The response of the answers, and of the outputs over all layers."""
    left = meter.of(learning)
    values = []
    for name in ("answers", "outputs"):
        one, other = (function_part(centred(getattr(of, name), of.levels)).flatten() for of in (plant, left))
        values.append(float(F.cosine_similarity(one, other, dim=0)))
    return values
