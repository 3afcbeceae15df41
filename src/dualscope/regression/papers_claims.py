"""What the papers claim that the experiments look at."""

from functools import cache
from pathlib import Path

import yaml

CLAIMS = Path(__file__).parent / "experiments" / "claims.yaml"


@cache
def claims() -> dict[str, str]:
    """experiment -> the paper and its claim.

    >>> claims()["ahn"]
    'Ahn et al. 2023: a trained linear layer is a step of GD with the best preconditioner'
    """
    found: dict[str, str] = yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))
    return found
