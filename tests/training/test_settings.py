"""Settings of a training: what is refused, and the rate over the steps."""

from dataclasses import replace
from typing import Any

import pytest

from dualscope.core.errors import InputError
from dualscope.training.settings import Settings
from tests.training.small import SMALL


@pytest.mark.parametrize(
    ("field", "value", "said"), [("steps", 0, "at least 1"), ("heads", 5, "multiple"), ("length", 32, "two examples")]
)
def test_impossible_settings_are_refused(field: str, value: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Settings(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("lr", value) for value in (float("inf"), float("nan"), 0.0)),
        *(("minutes", value) for value in (float("inf"), float("nan"))),
        *(("balance", value) for value in ((float("nan"), 1.0), (1.0, float("nan")), (1e9, 1.0), (1.0, 1e-9))),
        *(("seed", value) for value in (-1, 2**32)),
        ("short_steps", -1),
    ],
)
def test_numbers_out_of_bounds_are_refused(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{field} must be"):
        replace(SMALL, **{field: value})


def test_the_rate_rises_then_falls() -> None:
    settings = Settings(steps=100, warmup=10, lr=1.0, minutes=1)
    assert settings.rate(0, 0) == pytest.approx(0.1)
    assert settings.rate(9, 0) == pytest.approx(1.0)
    assert settings.rate(50, 0.5) == pytest.approx(0.51)
    assert settings.rate(100, 1) == pytest.approx(0.02)
    assert settings.progress(0, 0) == 0
    assert settings.progress(50, 6) == 0.5
    assert settings.progress(0, 30) == 0.5
    assert settings.progress(0, 60) == settings.progress(0, 90) == settings.progress(100, 0) == 1
