"""How alike two in-context learners are: what they predict, and how that depends on the query."""

from collections.abc import Callable

import torch
from torch import Tensor

from dualscope.regression.problems import Prompts, TaskBatch, generators

Predict = Callable[[Tensor], Tensor]  # tokens [copies, tasks, n + 1, d + 1] -> [copies, tasks]


def half_mse(predict: Predict, batch: TaskBatch) -> Tensor:
    """1/2 E (prediction - target)^2 for each copy: [copies]."""
    return 0.5 * (predict(batch.tokens) - batch.target).square().mean(-1)


def sensitivity(predict: Predict, batch: TaskBatch) -> tuple[Tensor, Tensor]:
    """Predictions [copies, tasks], and d prediction / d query [copies, tasks, d]."""
    query = batch.query.detach().clone().requires_grad_()
    predictions = predict(TaskBatch(batch.x, batch.y, query, batch.target).tokens)
    (gradient,) = torch.autograd.grad(predictions.sum(), query)
    return predictions.detach(), gradient


def alignment(first: Predict, second: Predict, batch: TaskBatch) -> dict[str, Tensor]:
    """von Oswald et al.'s three measures, and the two losses; each [copies].

    ``prediction difference`` is the mean |difference|; ``sensitivity cosine`` and ``sensitivity distance``
    compare the derivatives of the prediction by the query.
    """
    (p, dp), (q, dq) = sensitivity(first, batch), sensitivity(second, batch)
    return {
        "loss": 0.5 * (p - batch.target).square().mean(-1),
        "reference loss": 0.5 * (q - batch.target).square().mean(-1),
        "prediction difference": (p - q).abs().mean(-1),
        "sensitivity cosine": torch.cosine_similarity(dp, dq, dim=-1).mean(-1),
        "sensitivity distance": (dp - dq).norm(dim=-1).mean(-1),
    }


def errors(guesses: Tensor, prompts: Prompts) -> Tensor:
    """Mean squared error by number of examples: [copies, points], on the CPU."""
    return (guesses.cpu().double() - prompts.target.cpu().double()).square().mean(1)


def implied_weights(last_guess: Callable[[Prompts], Tensor], context: Prompts, queries: int) -> Tensor:
    """The weights that a learner behaves as after the examples of each prompt: least squares on its guesses for
    ``queries`` other inputs in place of the last. [copies, contexts, d], float64.
    """
    copies, contexts, _, d = context.x.shape
    (generator,) = generators([0], 8, context.x.device)
    asked = torch.randn((contexts, queries, d), generator=generator, device=context.x.device)
    x = context.x[:, :, None].expand(-1, -1, queries, -1, -1).clone()
    x[..., -1, :] = asked
    y = context.y[:, :, None].expand(-1, -1, queries, -1)
    flat = Prompts(x.flatten(1, 2), y.flatten(1, 2), y.flatten(1, 2))
    guesses = last_guess(flat).view(copies, contexts, queries, 1)
    inputs = asked.cpu().double().expand(copies, -1, -1, -1)
    found: Tensor = torch.linalg.lstsq(inputs, guesses.cpu().double()).solution.squeeze(-1)
    return found
