"""Chat templates of the kinds that models have, and tokenizers to go with them."""

from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

_LOOP = "{% for message in messages %}"
_END = "{% endfor %}"
_CHATML = (
    _LOOP
    + "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    + _END
    + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_LLAMA2 = (
    _LOOP
    + "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + message['content'] + ' [/INST]' }}"
    + "{% else %}{{ ' ' + message['content'] + ' ' + eos_token }}{% endif %}"
    + _END
)
_GEMMA = (
    "{{ bos_token }}"
    + _LOOP
    + "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    + "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    + _END
    + "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
_HEADER = "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>'"
_LLAMA3 = (
    "{{ bos_token }}{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    + "{{ '<|start_header_id|>system<|end_header_id|>\n\nToday Date: ' + date_string + '\n\n<|eot_id|>' }}"
    + _LOOP + "{{ " + _HEADER + " }}" + _END
    + "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)  # fmt: skip
_PHI3 = (
    _LOOP
    + "{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}"
    + _END
    + "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
_CHANNELS = (
    "{{ '<|start|>system<|message|>Current date: ' + strftime_now('%Y-%m-%d') + '<|end|>' }}"
    + _LOOP
    + "{% if message['role'] == 'user' %}{{ '<|start|>user<|message|>' + message['content'] + '<|end|>' }}{% else %}"
    + "{{ '<|start|>assistant<|channel|>final<|message|>' + message['content'] + '<|end|>' }}{% endif %}"
    + _END
    + "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
_THOUGHTLESS = (  # earlier answers have empty thoughts, and an answer that is asked for may think
    "<s>"
    + _LOOP
    + "{% if message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] }}{% else %}"
    + "{{ '<|assistant|>\n<think></think>\n' + message['content'] }}{% endif %}"
    + _END
    + "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_QWEN3 = (  # the last answer shows its thoughts, earlier ones do not
    _CHATML.replace("+ '\n' + message", "+ '\n' }}{% if loop.last and message['role'] == 'assistant' %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{{ message")
)  # fmt: skip

GOOD: dict[str, str] = {
    "chatml": _CHATML,
    "chatml with a system message": "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}" + _CHATML,
    "llama 2": _LLAMA2,
    "llama 3": _LLAMA3,
    "gemma": _GEMMA,
    "mistral": "{{ bos_token }}" + _LLAMA2.replace("bos_token + '[INST] '", "'[INST] '").replace("+ ' ' +", "+"),
    "phi 3": _PHI3,
    "gpt-oss": _CHANNELS,
    "glm": _THOUGHTLESS,
    "qwen 3": _QWEN3,
    "begins with a blank line": "\n\n" + _CHATML,
}

BAD: dict[str, tuple[str, str]] = {
    "no template": ("", "has no chat template"),
    "needs a system message": (
        "{% if messages[0]['role'] != 'system' %}{{ raise_exception('system message first') }}{% endif %}" + _CHATML,
        "does not render questions and answers (system message first); does it need a system message?",
    ),
    "is no template": ("{% for %}", "does not render questions and answers"),
    "numbers its turns": (
        _CHATML.replace("'<|im_start|>' + message['role']", "'<|im_start|>' + message['role'] + loop.index|string"),
        "writes a turn differently when others stand before or after it",
    ),
    "shows the last turn only": (
        _CHATML.replace(_LOOP, "{% for message in messages[-1:] %}"),
        "does not write every turn once",
    ),
    "a system message inside the first question": (
        _LLAMA2.replace("'[INST] ' +", "'[INST] ' + ('<<SYS>>Be brief.<</SYS>>' if loop.first else '') +"),
        "begins the first question with",
    ),
    "asks for thoughts first": (
        _CHATML.replace("'<|im_start|>assistant\n' }}", "'<|im_start|>assistant\n<think>\n' }}"),
        r"opens the answer that it asks for with '<|im_end|>\n<|im_start|>assistant\n<think>\n' and earlier answers",
    ),
    "shouts": (_CHATML.replace("message['content']", "message['content'] | upper"), "does not write every turn once"),
}

_SPECIAL = [
    "<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>", "<|start_header_id|>",
    "<|end_header_id|>", "<|eot_id|>", "<|user|>", "<|assistant|>", "<|end|>", "<|start|>", "<|message|>",
    "<|channel|>",
]  # fmt: skip
_TEXTS = [
    "Sentence: a fine film Label: Positive", "Sentence: a dull plot Label: Negative",
    "user assistant system model final",
    "You are a helpful assistant. Today Date: 26 Jul 2024 Current date: [INST] [/INST] the movie was not good at all",
]  # fmt: skip


@cache
def _trained(kind: str) -> Tokenizer:
    """``bytes`` as GPT-2 and Llama 3 split text, ``spaces`` as SentencePiece marks words: both from a few sentences."""
    tokenizer = Tokenizer(BPE(unk_token="<unk>", byte_fallback=kind == "spaces"))
    if kind == "bytes":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:  # as Llama 2's: a space before every text, spaces as letters
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
        alphabet = [chr(i) for i in range(32, 127)]
    bytes_ = [f"<0x{i:02X}>" for i in range(256)] if kind == "spaces" else []
    trainer = BpeTrainer(
        vocab_size=900, special_tokens=[*_SPECIAL, *bytes_], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_TEXTS * 4, trainer)
    return tokenizer


def chat_tokenizer(kind: str = "bytes", template: str | None = _CHATML) -> Any:
    made = Tokenizer.from_str(_trained(kind).to_str())
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<unk>"
    )
    tokenizer.chat_template = template
    return tokenizer
