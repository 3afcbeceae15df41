"""How many GPUs an actor asks for."""

from hypothesis import given
from hypothesis import strategies as st

from dualscope.studies.execute.engines.gpus import MOST_ON_ONE, USABLE, gpus_for

SIZES = st.integers(2**20, 2**42)


@given(needed=SIZES, one=SIZES)
def test_what_is_asked_for_is_enough_and_not_wasted(needed: int, one: int) -> None:
    asked = gpus_for(needed, one)
    if asked >= 1:
        assert asked == int(asked)
        assert needed <= asked * USABLE * one * (1 + 1e-12)
        assert asked == 1 or needed > (asked - 1) * USABLE * one * (1 - 1e-12)
    else:
        sharing = round(1 / asked)
        assert 1 < sharing <= MOST_ON_ONE
        assert sharing * asked <= 1
        assert sharing * needed <= USABLE * one
