"""Model cards that record odd rates: told where the rates are asked for."""

from tests.hostile.inputs.bad import Bad, Place
from tests.hostile.inputs.yaml_texts import LAUGHS, MERGES

RATES = ("0", "-1", "fast", "true", "[0.1]", "{a: 1}", ".nan", ".inf", "null", "'0.1'", "2001-01-01", "!!binary aGk=")
CARDS: dict[str, bytes] = {
    **{f"a rate of {rate}": f"---\nrates:\n  mine: {rate}\n---\n# Model\n".encode() for rate in RATES},
    "a list of rates": b"---\nrates: [mine, 0.1]\n---\n",
    "a text for rates": b"---\nrates: mine\n---\n",
    "a number for rates": b"---\nrates: 0.1\n---\n",
    "an open bracket": b"---\nrates: [\n---\n",
    "a tab": b"---\nrates:\n\tmine: 0.1\n---\n",
    "python": b"---\nrates: !!python/object/apply:os.system ['true']\n---\n",
    "laughs": b"---\n" + LAUGHS.encode() + b"rates: *i\n---\n",
    "merges": b"---\n" + MERGES.encode() + b"rates: *i\n---\n",
    "itself": b"---\nrates: &a [*a]\n---\n",
    "not UTF-8": b"---\nrates: {mine: 0.1}\n---\n\xff\xfe\n",
    "a list at its head": b"---\n- a\n- b\n---\n",
    "deep": b"---\nrates: " + b"[" * 5000 + b"]" * 5000 + b"\n---\n",
}


def _card(name: str, content: bytes) -> Bad:
    def make(place: Place) -> None:
        place.task()
        (place.model() / "README.md").write_bytes(content)

    command = ("run", "--model", "{here}/model", "--task", "{here}/mine.yaml", "--lr", "recorded", "--dry-run")
    return Bad(f"card {name}", (*command, "--out", "{here}/run"), r"README\.md", make)


TABLE = [_card(name, content) for name, content in CARDS.items()]
