"""The tokenizer of the generated language: one token a word or mark, as a fast Hugging Face tokenizer."""

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from dualscope.tasks.synthetic.lexicon import LEXICON

# "Label:" is one token and "film." two, with or without spaces around: pieces of a prompt may be tokenised separately.
PATTERN = r"<\w+>|\w+:|\w+|[^\w\s]"


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer; a word outside of the language becomes ``<unk>``.

    >>> tokenizer = make_tokenizer()
    >>> tokenizer.tokenize("Sentence: the film was superb. Label:") + tokenizer.tokenize(" Positive")
    ['Sentence:', 'the', 'film', 'was', 'superb', '.', 'Label:', 'Positive']
    """
    vocabulary = {word: number for number, word in enumerate(LEXICON.words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split(Regex(PATTERN), behavior="removed", invert=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<bos>", eos_token="<eos>", pad_token="<eos>"
    )
