"""Which device each part of a model goes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dualscope.core.errors import InputError
from dualscope.models import hardware
from dualscope.models.families import family_of
from dualscope.models.precision import name_of
from dualscope.models.reading.memory import in_words, weight_bytes


def placement(
    name: str, empty: Any, dtype: torch.dtype, places: Sequence[torch.device], automatic: bool
) -> dict[str, Any]:
    """Where the weights of a model (given on the meta device) go, once it is known that they fit: keywords for
    ``from_pretrained``.

    Never the disk, and the CPU only where it was named: weights that come and go cannot be trained.
    """
    need = weight_bytes(empty, dtype)
    room = sum(hardware.total_memory(place) for place in places)
    if need < 0.9 * room:
        return {"device_map": {"": places[0]} if len(places) == 1 else split(empty, places)}
    if automatic and places[0].type == "cuda":
        every = {i: hardware.total_memory(torch.device("cuda", i)) for i in range(torch.cuda.device_count())}
        room = sum(every.values())
        if len(every) > 1 and need < 0.8 * room:
            return {"device_map": "auto", "max_memory": {i: int(0.85 * size) for i, size in every.items()}}
    named = ", ".join(map(str, places))
    raise InputError(
        f"model '{name}' needs {in_words(need)} for its {name_of(dtype)} weights, and '{named}' has "
        f"{in_words(room)} in all; use --dtype bfloat16, another --device, several (cuda:0,cuda:1), or a smaller model"
    )


def split(hf: Any, places: Sequence[torch.device]) -> dict[str, torch.device]:
    """A model's blocks in equal shares over the devices, in order; what comes before them on the first, what comes
    after them on the last. An unembedding that is the embedding stays with it.
    """
    family = family_of(hf)
    count = len(hf.get_submodule(family.blocks))
    tied = hf.get_input_embeddings().weight is hf.get_output_embeddings().weight
    found: dict[str, torch.device] = {}

    def place(path: str, module: nn.Module) -> None:
        if path == family.blocks:
            found.update({f"{path}.{i}": places[i * len(places) // count] for i in range(count)})
        elif not path or f"{family.blocks}.".startswith(f"{path}."):
            for name, child in module.named_children():
                place(f"{path}.{name}" if path else name, child)
        else:
            head = module is hf.get_output_embeddings() and not tied
            found[path] = places[-1] if head or path in family.final else places[0]

    place("", hf)
    return found
