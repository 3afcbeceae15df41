"""Learning rates recorded in a model's card: what ``lr: recorded`` means."""

from __future__ import annotations

from collections.abc import Sequence

from dualscope.models.source import find


def recorded_rates(models: Sequence[str], tasks: Sequence[str]) -> dict[tuple[str, str], float]:
    """The rate of each model and task whose card names one, under ``rates:`` at the head of its README.md."""
    import yaml

    found = {}
    for model in models:
        folder = find(model, offline=True).folder
        card = folder / "README.md" if folder is not None else None
        if card is None or not card.is_file():
            continue
        _, mark, rest = card.read_text(encoding="utf-8").partition("---\n")
        head, end, _ = rest.partition("\n---")
        fields = yaml.safe_load(head) if mark and end else None
        rates = fields.get("rates", {}) if isinstance(fields, dict) else {}
        found.update({(model, task): float(rates[task]) for task in tasks if task in rates})
    return found
