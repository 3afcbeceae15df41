"""The words of the generated language: clusters that carry a class, and neutral words that carry none.

All lists are ours. A word stands in exactly one list (``lexicon`` checks it), so a word names its cluster.
"""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


# The clusters of one attribute stand together. Of the two clusters of a class, the first is *known*: in training it
# goes with the class's canonical label word. The second never does.
WORDS = {
    # sentiment, five levels
    "terrible-1": (
        "awful dreadful horrid atrocious abysmal wretched ghastly vile appalling hideous unbearable disastrous"
    ),
    "terrible-2": "mess disaster garbage fiasco nightmare insult torture wreck travesty stinker trainwreck catastrophe",
    "bad-1": "weak dull flat tired clumsy bland stale sloppy shallow tedious lifeless muddled",
    "bad-2": "flaw cliche letdown slip blunder weakness gap bore misstep yawn filler muddle",
    "neutral-1": "average plain ordinary typical usual moderate standard routine common fair medium middling",
    "neutral-2": "detail outline summary format layout section portion segment category instance example version",
    "good-1": "nice pleasant solid charming likable decent warm sweet neat enjoyable capable engaging",
    "good-2": "virtue treat pleasure skill wit craft spirit heart merit comfort smile humor",
    "great-1": (
        "superb brilliant stunning magnificent glorious flawless masterful dazzling sublime exquisite splendid perfect"
    ),
    "great-2": "masterpiece triumph miracle marvel wonder gem classic treasure delight jewel landmark milestone",
    # topic
    "world-1": "minister treaty embassy parliament diplomat president senate border refugee summit ambassador election",
    "world-2": "soldier army rebel troops ceasefire militia invasion missile tank hostage siege general",
    "sports-1": "coach goal striker match referee league stadium keeper midfielder penalty season tournament",
    "sports-2": "runner medal sprint athlete swimmer marathon javelin hurdle champion gymnast cyclist relay",
    "business-1": "stock shares profit investor dividend bank bond broker market earnings fund analyst",
    "business-2": "factory merger retailer export tariff supplier contract payroll cargo wholesaler invoice franchise",
    "technology-1": (
        "software computer browser server laptop keyboard network processor database website password internet"
    ),
    "technology-2": "rocket satellite telescope robot laser sensor reactor orbit microscope genome particle drone",
    # subjectivity
    "objective-1": "detective widow sheriff orphan burglar sailor nurse thief landlord prisoner heiress smuggler",
    "objective-2": "village island castle harbor train letter map funeral wedding cabin tunnel lighthouse",
    "subjective-1": "charm grace boredom depth tension sincerity emotion energy irony pathos nostalgia elegance",
    "subjective-2": "opinion taste impression feeling doubt hope belief guess verdict complaint preference mood",
    # question type
    "abbreviation-1": "acronym initials abbreviation shorthand letters symbol code monogram tag logo badge stamp",
    "abbreviation-2": "nasa fbi nato dna usa bbc cia gmt atm vip ufo scuba",
    "entity-1": "animal plant bird fish flower insect tree vegetable fruit reptile mammal mineral",
    "entity-2": "color instrument weapon vehicle currency language sport game disease religion beverage fabric",
    "description-1": (
        "meaning reason definition origin purpose cause explanation difference process method theory history"
    ),
    "description-2": (
        "effect function role nature structure principle evidence consequence motive procedure significance background"
    ),
    "person-1": "actor author king inventor composer painter explorer philosopher singer poet emperor dancer",
    "person-2": "father mother teacher doctor lawyer wife husband cousin neighbor tailor baker farmer",
    "location-1": "city country river mountain ocean continent desert lake valley peninsula canyon volcano",
    "location-2": "street museum airport hotel church bridge library restaurant park palace theater hospital",
    "number-1": "distance population height weight speed temperature age length percentage amount area volume",
    "number-2": "dozen hundred thousand million pair decade century mile gallon pound inch acre",
    # attributes of no embedded task: they make training tasks many, and serve as distractors
    "weather": "rain storm snow fog thunder breeze hail frost sunshine cloud drizzle blizzard",
    "kitchen": "kettle spoon oven plate knife pan bowl cup fork jar ladle skillet",
    "clothes": "jacket scarf glove boot hat shirt sock coat belt skirt sweater apron",
    "body": "elbow shoulder knee ankle finger thumb wrist neck chin heel rib jaw",
    "furniture": "chair table sofa lamp shelf drawer mirror carpet curtain bench stool cupboard",
    "tools": "hammer mallet drill wrench ladder nail shovel rake axe chisel pliers bucket",
    "music": "violin trumpet drum piano flute cello guitar harp tuba banjo clarinet organ",
    "farm": "cow sheep goat horse pig hen barn tractor duck rooster donkey pony",
    "colors": "red blue green purple orange yellow pink brown gray crimson turquoise scarlet",
    "textures": "smooth rough sticky fuzzy silky bumpy slippery grainy velvety prickly soft spongy",
    "flavors": "salty bitter sour spicy tangy savory sugary minty peppery buttery tart smoky",
    "motion": "ran jumped walked climbed crawled marched swam leaped skipped wandered hurried danced",
    "speech": "whispered shouted argued sang laughed replied mumbled announced complained begged promised joked",
    "repair": "built repaired painted measured welded carved polished assembled sanded hammered plastered glued",
    "cooking": "baked fried boiled roasted stirred chopped peeled grilled simmered toasted mixed poured",
}
ADJECTIVES = {"terrible-1", "bad-1", "neutral-1", "good-1", "great-1", "colors", "textures", "flavors"}
VERBS = {"motion", "speech", "repair", "cooking"}
CLUSTERS = {
    name: ("adjective" if name in ADJECTIVES else "verb" if name in VERBS else "noun", words)
    for name, words in WORDS.items()
}
"""By name: part of speech, words."""

# Words that mean the opposite of each other: what the pairs of sentences are about.
OPPOSITES = (
    "open/closed hot/cold tall/short wet/dry full/empty early/late heavy/light clean/dirty rich/poor fast/slow "
    "old/young loud/quiet hard/easy awake/asleep strong/frail thick/thin wide/narrow near/far alive/dead safe/risky "
    "sharp/blunt brave/afraid busy/idle cheap/costly"
)

NEUTRAL: dict[str, str] = {
    "thing": "film story book song show scene plot room house moment piece day evening part place object",
    "name": "anna ben clara david emma frank gina henry iris jack kate leo maria noah olga paul",
    "did": "saw found watched noticed kept took brought followed showed met described mentioned",
    "when": "today yesterday again here there often later soon once still then now",
    "degree": "very really quite rather truly simply fairly so",
    "where": "town home work school north south east west",
}

# Label words of no embedded task.
ARBITRARY_LABELS = (
    "Alpha Beta Gamma Delta Omega Sigma A B C D E F Foo Bar Baz Qux One Two Three Four Five Six Yes No Maybe Left "
    "Right Up Down North South East West Apple Lemon Cherry Mango Gold Silver Bronze Iron Circle Square Triangle "
    "Monday Tuesday Friday Sunday Spring Summer"
)

# Words before and after the text of an example.
FORMATS: dict[str, tuple[str, str]] = {
    "sentence": ("Sentence:", "Label:"),
    "input": ("Input:", "Type:"),
    "article": ("Article:", "Answer:"),
    "question": ("Question:", "Type:"),
    "review": ("Review:", "Sentiment:"),
    "text": ("Text:", "Class:"),
    "item": ("Item:", "Group:"),
}

SPECIAL = ("<unk>", "<bos>", "<eos>")


# Words that the frames need beside the lists, and the label words of the embedded tasks.
GRAMMAR = (
    ". , ? the this that one some every all of in on by with from and but also is was were had it they we he she "
    "what which who where when how did work about not said"
)
TASK_LABELS = (
    "Negative Positive terrible bad neutral good great objective subjective World Sports Business Technology "
    "Abbreviation Entity Description Person Location Number True False Neither"
)


class Lexicon:
    """The vocabulary, in a fixed order, and the word lists as one padded table.

    >>> LEXICON.text(LEXICON.ids("the film was superb , moving ."))
    'the film was superb, <unk>.'
    """

    def __init__(self) -> None:
        self.clusters = tuple(CLUSTERS)
        self.parts = tuple(part for part, _ in CLUSTERS.values())
        self.neutral = tuple(NEUTRAL)
        self.labels = tuple(TASK_LABELS.split() + ARBITRARY_LABELS.split())
        self.opposites = tuple(tuple(pair.split("/")) for pair in OPPOSITES.split())
        lists = [words.split() for _, words in CLUSTERS.values()] + [words.split() for words in NEUTRAL.values()]
        content = [word for words in lists for word in words] + [word for pair in self.opposites for word in pair]
        repeated = [word for word, count in Counter(content + list(self.labels)).items() if count > 1]
        if repeated:
            raise ValueError(f"words in two lists: {', '.join(repeated)}")
        formats = [word for pair in FORMATS.values() for word in pair]
        # A dictionary keeps the order and drops the repetitions among the grammar's words.
        self.words = tuple(dict.fromkeys([*SPECIAL, *GRAMMAR.split(), *formats, *self.labels, *content]))
        self._number = {word: number for number, word in enumerate(self.words)}
        # [lists, longest]: clusters first, then the neutral lists
        self.sizes: NDArray[np.int64] = np.array([len(words) for words in lists])
        self.table: NDArray[np.int64] = np.zeros((len(lists), int(self.sizes.max())), dtype=np.int64)
        for row, words in zip(self.table, lists, strict=True):
            row[: len(words)] = [self.id(word) for word in words]

    def __len__(self) -> int:
        return len(self.words)

    def id(self, word: str) -> int:
        """The number of a word of the language."""
        return self._number[word]

    def ids(self, text: str) -> list[int]:
        """The numbers of words that are separated by spaces; 0 for an unknown word."""
        return [self._number.get(word, 0) for word in text.split()]

    def text(self, ids: Iterable[int]) -> str:
        """Words as a person writes them: no space before a mark, nothing for empty places."""
        text = " ".join(self.words[number] for number in ids if number >= 0)
        for mark in ".,?":
            text = text.replace(f" {mark}", mark)
        return text


LEXICON = Lexicon()
