"""Chat templates that explode: bounded in output, memory and time, and refused in words."""

import time

import pytest

from dualscope.core.errors import InputError
from dualscope.tasks.chat import turns_of
from tests.tasks.chats import chat_tokenizer

LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = a * b %}{% endfor %}{% endfor %}"
NESTED = "{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}"


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' * 3000000000 }}",
        "{{ 'x' * 900000000000 }}",
        "{{ 'x' | center(3000000000) }}",
        "{{ '%3000000000d' % 1 }}",
        "{{ 10 ** 10 ** 8 }}",
        "{{ 'x' * 5000000 }}",
        NESTED,
        pytest.param(LOOP, marks=pytest.mark.slow),
    ],
)
def test_an_exploding_template_is_refused(template: str) -> None:
    began = time.monotonic()
    with pytest.raises(InputError, match="chat template"):
        turns_of(chat_tokenizer(template=template))
    assert time.monotonic() - began < 60
