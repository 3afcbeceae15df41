"""How well a model in training learns in context: accuracy at every number of demonstrations, in one pass.

The label of a sequence's example k is predicted after k demonstrations, so sequences of one task give the whole curve,
from zero-shot (k = 0) on. A prediction is the most likely of the task's own label words.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dualscope.tasks.synthetic.embedded_tasks import ATTRIBUTES
from dualscope.tasks.synthetic.generated_words import FORMATS, LEXICON
from dualscope.training.corpus import LABEL_IDS, Mapping, Sequence, held_out_tasks, write_batch

SHOTS = (0, 1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Curve:
    """Accuracy by number of demonstrations; ``shots`` that do not fit in the sequences are left out."""

    name: str
    classes: int
    accuracy: dict[int, float]

    def as_dict(self) -> dict[str, Any]:
        rounded = {str(k): round(v, 4) for k, v in self.accuracy.items()}
        return {"name": self.name, "chance": round(1 / self.classes, 4), "accuracy": rounded}


def embedded_sequences(flipped: bool = False) -> list[tuple[str, Sequence]]:
    """The embedded tasks; ``flipped``: every class has the next one's label word."""
    found = []
    for attribute in ATTRIBUTES:
        labels = [LEXICON.labels.index(word) for word in attribute.labels]
        mapping = Mapping(attribute.classes, tuple(labels[1:] + labels[:1] if flipped else labels))
        number = 0 if attribute.of_pairs else list(FORMATS).index(attribute.format)
        found.append((attribute.name, Sequence(mapping, attribute.of_pairs, number, attribute.style)))
    return found


def held_out_sequences(n: int, classes: int, rng: np.random.Generator) -> list[Sequence]:
    """Held-out tasks in any of the formats."""
    return [Sequence(m, False, int(rng.integers(len(FORMATS))), 0) for m in held_out_tasks(n, classes, rng)]


@torch.no_grad()
def measure_curve(
    name: str, model: Any, sequences: Items[Sequence], length: int, rng: np.random.Generator, batch: int = 32
) -> Curve:
    """The curve over ``sequences``, one context each; all of them have the same number of classes."""
    device = next(model.parameters()).device
    right: dict[int, list[bool]] = {shots: [] for shots in SHOTS}
    for start in range(0, len(sequences), batch):
        some = list(sequences[start : start + batch])
        written = write_batch(some, length, rng)
        tokens = torch.as_tensor(written.tokens, device=device).long()
        words = LABEL_IDS[[s.mapping.labels for s in some]]  # [rows, classes]
        hidden = model.transformer(input_ids=tokens, use_cache=False).last_hidden_state
        for row in range(len(some)):
            places = np.flatnonzero(written.is_label[row])
            kept = [(shots, places[shots]) for shots in SHOTS if shots < len(places)]
            at = torch.as_tensor([place - 1 for _, place in kept], device=device)
            logits = model.lm_head(hidden[row, at])[:, torch.as_tensor(words[row], device=device)]
            predicted = words[row][logits.argmax(-1).cpu().numpy()]
            for (shots, place), word in zip(kept, predicted, strict=True):
                right[shots].append(bool(word == written.tokens[row, place]))
    classes = len(sequences[0].mapping.classes)
    return Curve(name, classes, {k: float(np.mean(v)) for k, v in right.items() if v})


def evaluate(model: Any, length: int, sequences: int, seed: int = 0) -> dict[str, Any]:
    """Embedded tasks, embedded tasks with flipped labels, and held-out tasks of 2 to 4 classes."""
    was_training = model.training
    model.eval()
    rng = np.random.default_rng([seed, 999])
    curves: dict[str, list[Curve]] = {"embedded": [], "flipped": [], "held_out": []}
    for name, sequence in embedded_sequences():
        curves["embedded"].append(measure_curve(name, model, [sequence] * sequences, length, rng))
    for name, sequence in embedded_sequences(flipped=True):
        if len(sequence.mapping.classes) == 2:
            curve = measure_curve(name, model, [sequence] * sequences, length, rng)
            # It was scored against the flipped labels; with two classes the gold accuracy is the rest.
            gold = {shots: 1 - value for shots, value in curve.accuracy.items()}
            curves["flipped"].append(replace(curve, accuracy=gold))
    for classes in (2, 3, 4):
        tasks = held_out_sequences(sequences, classes, rng)
        curves["held_out"].append(measure_curve(f"{classes} classes", model, tasks, length, rng))
    model.train(was_training)
    return {kind: [curve.as_dict() for curve in some] for kind, some in curves.items()} | {
        "mean": {kind: _mean(some) for kind, some in curves.items()}
    }


def _mean(curves: list[Curve]) -> dict[str, float]:
    shots = sorted(set.intersection(*(set(curve.accuracy) for curve in curves)))
    return {str(k): round(float(np.mean([curve.accuracy[k] for curve in curves])), 4) for k in shots}
