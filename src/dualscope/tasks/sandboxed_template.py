"""The process that tries a model's chat template: ``python sandboxed_template.py`` with a request in JSON on its input.

A template is a program. Its sandbox keeps it from files and from our objects, and not from asking for terabytes or
running for ever; a process of its own, with limits, does.
"""

import json
import sys
from typing import Any

MEMORY = 2**30  # bytes beyond what the process has when it begins
SECONDS = 10
LONGEST = 2**20  # characters of a conversation of a few words


def render(request: dict[str, Any]) -> None:
    """Render every conversation; what is too much raises, or the system ends this process."""
    from transformers.utils.chat_template_utils import render_jinja_template

    _limit()
    for messages, answer in request["conversations"]:
        made: Any = render_jinja_template(
            conversations=[messages],
            chat_template=request["template"],
            add_generation_prompt=answer,
            **request["settings"],
        )
        text = made[0][0]  # of a list of conversations, and what generation would begin with
        if len(text) > LONGEST:
            raise ValueError(f"it makes {len(text):,} characters of a few words")


def _limit() -> None:
    try:
        import resource
    except ImportError:  # Windows: the parent's patience alone
        return
    import psutil

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    most = psutil.Process().memory_info().vms + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    try:
        render(json.load(sys.stdin))
    except MemoryError:
        sys.exit(f"it asks for more than {MEMORY >> 30} GiB of memory")
    except Exception as error:
        sys.exit(f"{error}".strip().splitlines()[0] if str(error).strip() else type(error).__name__)
