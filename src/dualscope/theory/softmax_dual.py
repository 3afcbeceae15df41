"""Softmax attention as one gradient step of a dual model (Ren & Liu, Theorem 3.1).

With exp(k . q) = phi(k) . phi(q), the dual model f(z) = W phi(z) starts at W0 (the tokens that are no
demonstrations) and takes one step on the loss

    L(W) = -(1 / (eta D)) sum_i v_i . W phi(k_i),     D = sum over all tokens of exp(k_i . q).

Then f(q) is the attention's output, exactly. Keys and queries are scaled by d^(-1/4) beforehand, so that
k . q is the usual score. D depends on the query: every query has a dual model of its own.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dualscope.theory.features import FeatureMap, gram_features, random_features
from dualscope.theory.icl_dual import attend
from dualscope.theory.identity import Draw, TwoSides, identity

REFERENCE = "Ren & Liu, Theorem 3.1"


@dataclass(frozen=True)
class Head:
    """What one query of a head sees: query [d], keys [n, d], values [n, d_v]; demonstrations come first.

    ``bias`` [n] is added to the scores (ALiBi, say). It scales the features of its key: exp(bias) phi(k).
    """

    query: Tensor
    keys: Tensor
    values: Tensor
    demonstrations: int
    bias: Tensor | None = None

    @classmethod
    def of(cls, x: Tensor, tokens: Tensor, demonstrations: int, query: Tensor, key: Tensor, value: Tensor) -> "Head":
        """From weights [d, width] each: x [width], tokens [n, width]."""
        root = query.shape[0] ** 0.25
        return cls(query @ x / root, tokens @ key.T / root, tokens @ value.T, demonstrations)

    @classmethod
    def draw(cls, draw: Draw, n: int = 24, demonstrations: int = 16, d: int = 4, size: float = 0.5) -> "Head":
        """Keys and query N(0, size^2), values N(0, 1)."""
        return cls(size * draw.normal(d), size * draw.normal(n, d), draw.normal(n, d), demonstrations)

    def output(self) -> Tensor:
        """Plain softmax attention, [d_v]."""
        return attend(self.scores(), self.values)

    def scores(self) -> Tensor:
        """k . q, with the bias: [n]."""
        products = self.keys @ self.query
        return products if self.bias is None else products + self.bias

    def features(self, phi: FeatureMap) -> Tensor:
        """Of the keys: [n, m]."""
        mapped = phi(self.keys)
        return mapped if self.bias is None else mapped * self.bias.exp().unsqueeze(-1)

    def balanced(self) -> "Head":
        """The same attention with keys centred, and of the query's size.

        softmax does not see either change, and exp(|k|^2), which the features carry, stays a number.
        """
        centred = self.keys - self.keys.mean(0)
        ratio = (centred.norm(dim=-1).max() / self.query.norm()).sqrt()
        return replace(self, keys=centred / ratio, query=self.query * ratio)

    def gram_map(self) -> FeatureMap:
        """Exact on this head's keys and query."""
        return gram_features(torch.cat([self.keys, self.query.unsqueeze(0)]), pivot=len(self.keys))


@dataclass(frozen=True)
class DualModel:
    """f(z) = W phi(z), its start W0 [d_v, m] and the data of its loss."""

    phi: FeatureMap
    start: Tensor  # [d_v, m]
    inputs: Tensor  # phi(k_i) of the demonstrations, [demonstrations, m]
    targets: Tensor  # v_i, [demonstrations, d_v]
    normaliser: Tensor  # D, scalar
    eta: float

    def loss(self, weight: Tensor, rows: slice = slice(None)) -> Tensor:
        """-(1/(eta D)) sum_i v_i . W phi(k_i): pulls W phi(k_i) towards v_i, without labels and without an
        optimum.
        """
        similarity = (self.targets[rows] * (self.inputs[rows] @ weight.T)).sum()
        return -similarity / (self.eta * self.normaliser)

    def step(self, weight: Tensor, rows: slice = slice(None)) -> Tensor:
        """One step of gradient descent, by autograd."""
        leaf = weight.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.loss(leaf, rows), leaf)
        return weight - self.eta * gradient

    def predict(self, weight: Tensor, query: Tensor) -> Tensor:
        """W phi(q): query [d] -> [d_v]."""
        return weight @ self.phi(query.unsqueeze(0))[0]


def dual_model(head: Head, phi: FeatureMap, eta: float = 1.0) -> DualModel:
    """The dual model of one query. D is taken in the map's own kernel, so an approximate map gives its own
    attention.
    """
    features = head.features(phi)  # [n, m]
    weights = features @ phi(head.query.unsqueeze(0))[0]  # [n]
    normaliser = weights.sum()
    rest = slice(head.demonstrations, None)
    start = head.values[rest].T @ features[rest] / normaliser
    demos = slice(None, head.demonstrations)
    return DualModel(phi, start, features[demos], head.values[demos], normaliser, eta)


def attention_is_one_step(head: Head, phi: FeatureMap, eta: float = 1.0) -> TwoSides:
    """Left: softmax attention. Right: the dual model's prediction after one step. Both [d_v].

    >>> head = Head.draw(Draw(0))
    >>> attention_is_one_step(head, head.gram_map(), eta=0.3).error < 1e-9
    True
    """
    dual = dual_model(head, phi, eta)
    return TwoSides(head.output(), dual.predict(dual.step(dual.start), head.query))


def kernel_trick(head: Head) -> TwoSides:
    """Left: softmax attention. Right: the same step with no features: sum_i v_i K(k_i, q) / D. Both [d_v]."""
    scores = head.scores()
    kernel = (scores - scores.max()).exp()  # [n]; the shift is in D as well, and keeps exp finite
    split = head.demonstrations
    zero_shot = head.values[split:].T @ kernel[split:] / kernel.sum()
    return TwoSides(head.output(), zero_shot + head.values[:split].T @ kernel[:split] / kernel.sum())


def feature_attention(head: Head, phi: FeatureMap) -> Tensor:
    """Attention in the map's kernel, phi(k) . phi(q) / sum: [d_v]."""
    weights = head.features(phi) @ phi(head.query.unsqueeze(0))[0]
    return (weights / weights.sum()) @ head.values


def token_steps(head: Head, phi: FeatureMap, eta: float = 1.0) -> Tensor:
    """The dual's prediction before, and after each one-demonstration step: [demonstrations + 1, d_v].

    L is linear in W, so the last row is what one step on all demonstrations gives. The way there is not
    monotone.
    """
    dual = dual_model(head, phi, eta)
    weight, path = dual.start, [dual.predict(dual.start, head.query)]
    for i in range(head.demonstrations):
        weight = dual.step(weight, slice(i, i + 1))
        path.append(dual.predict(weight, head.query))
    return torch.stack(path)


@dataclass(frozen=True)
class FeedForward:
    """W2 relu(W1 h + b1) + b2: up [hidden, d], down [d_out, hidden]."""

    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor

    @classmethod
    def draw(cls, draw: Draw, d: int = 4, hidden: int = 16) -> "FeedForward":
        return cls(draw.weight(hidden, d), draw.normal(hidden), draw.weight(d, hidden), draw.normal(d))

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.down @ torch.relu(self.up @ hidden + self.up_bias) + self.down_bias

    def at(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The affine map it is at this input: W_F = W2 S W1 [d_out, d] and its bias [d_out]."""
        on = (self.up @ hidden + self.up_bias > 0).to(hidden)  # the diagonal of S
        return (self.down * on) @ self.up, self.down @ (on * self.up_bias) + self.down_bias


def ffn_is_one_step(head: Head, ffn: FeedForward, phi: FeatureMap, eta: float = 1.0) -> TwoSides:
    """Left: FFN(attention). Right: the dual model with W_F W_V in W_V's place, plus the bias. Both [d_out]."""
    left = ffn(head.output())
    linear, bias = ffn.at(head.output())
    through = replace(head, values=head.values @ linear.T)
    dual = dual_model(through, phi, eta)
    return TwoSides(left, dual.predict(dual.step(dual.start), head.query) + bias)


Weights = tuple[Tensor, Tensor, Tensor]  # query, key [d, width], value [width, width]


def layers_are_duals(layers: list[Weights], tokens: Tensor, demonstrations: int) -> TwoSides:
    """Left: a stack of softmax layers with residuals. Right: one dual model a layer and token, each trained
    on the previous layer's tokens as the duals left them. tokens [n, width]; both sides [n, width].
    """
    plain, dual_side = tokens, tokens
    for weights in layers:
        heads = [Head.of(x, plain, demonstrations, *weights) for x in plain]
        plain = plain + torch.stack([head.output() for head in heads])
        trained = []
        for x in dual_side:
            head = Head.of(x, dual_side, demonstrations, *weights)
            dual = dual_model(head, head.gram_map())
            trained.append(dual.predict(dual.step(dual.start), head.query))
        dual_side = dual_side + torch.stack(trained)
    return TwoSides(plain, dual_side)


@identity("softmax-dual-gram", "softmax attention = one GD step of W φ(z), Gram map", REFERENCE, 1e-9, 1e-2)
def _gram(draw: Draw) -> TwoSides:
    head = Head.draw(draw)
    return attention_is_one_step(head, head.gram_map(), eta=0.3)


@identity("softmax-dual-all-demos", "the same with W₀ = 0: every token a demonstration", REFERENCE, 1e-9, 1e-2)
def _all(draw: Draw) -> TwoSides:
    head = Head.draw(draw, n=16, demonstrations=16)
    return attention_is_one_step(head, head.gram_map())


@identity("softmax-dual-kernel-trick", "the same step without features: Σᵢ vᵢ K(kᵢ,q) / D", REFERENCE)
def _trick(draw: Draw) -> TwoSides:
    return kernel_trick(Head.draw(draw))


@identity("softmax-dual-random-exact", "random-feature attention = its own dual, m = 1024", REFERENCE)
def _random_exact(draw: Draw) -> TwoSides:
    head, phi = Head.draw(draw), random_features(draw.normal(1024, 4))
    dual = dual_model(head, phi, eta=0.3)
    return TwoSides(feature_attention(head, phi), dual.predict(dual.step(dual.start), head.query))


@identity("softmax-dual-random", "the random-feature dual ≈ softmax, m = 16384", REFERENCE, 0.1, 0.1, "approximation")
def _random(draw: Draw) -> TwoSides:
    # Eight heads in one error: that of a single output is noisy where the output happens to be small.
    phi = random_features(draw.normal(16384, 4))
    sides = [attention_is_one_step(Head.draw(draw, size=0.3), phi) for _ in range(8)]
    return TwoSides(torch.stack([one.left for one in sides]), torch.stack([one.right for one in sides]))


@identity("softmax-dual-steps", "N one-token steps = one step on all N demonstrations", REFERENCE, 1e-9, 1e-2)
def _steps(draw: Draw) -> TwoSides:
    head = Head.draw(draw)
    return TwoSides(token_steps(head, head.gram_map())[-1], head.output())


@identity("softmax-dual-ffn", "FFN(attention) = the dual with W_F = W₂ S W₁ before W_V", REFERENCE, 1e-9, 1e-2)
def _ffn(draw: Draw) -> TwoSides:
    head = Head.draw(draw)
    return ffn_is_one_step(head, FeedForward.draw(draw), head.gram_map())


@identity("softmax-dual-layers", "3 layers = 3 duals, each on the previous one's tokens", REFERENCE, 1e-9, 1e-2)
def _layers(draw: Draw) -> TwoSides:
    layers = [(draw.weight(4, 6), draw.weight(4, 6), draw.weight(6, 6)) for _ in range(3)]
    return layers_are_duals(layers, draw.normal(12, 6), demonstrations=9)
