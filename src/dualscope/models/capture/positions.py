"""How many tokens a model can see."""

from typing import Any

UNSAID = 2048  # what a model with no position table (ALiBi) is given


def max_positions(config: Any, tokenizer: Any) -> int:
    """The smaller of what the model and the tokenizer say; 2048 where neither does (ALiBi).

    >>> from types import SimpleNamespace as Say
    >>> max_positions(Say(max_position_embeddings=1024), Say(model_max_length=10**30))
    1024
    """
    # Llama 4's layers see chunks: within the first one it is like any other model.
    names = ("max_position_embeddings", "max_seq_len", "attention_chunk_size")
    limits = [getattr(config, name, None) for name in names] + [getattr(tokenizer, "model_max_length", None)]
    return min([int(limit) for limit in limits if limit is not None and 0 < limit < 10**9], default=UNSAID)
