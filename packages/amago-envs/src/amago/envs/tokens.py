"""Text observations as tokens: the vocabularies and lengths of gymnasium's Text and minigrid's MissionSpace.

| space        | tokens of    | vocabulary                                                | length K             |
|--------------|--------------|-----------------------------------------------------------|----------------------|
| Text         | characters   | the space's character set, sorted                         | its `max_length`     |
| MissionSpace | words        | `MISSION_WORDS`, then the space's own other words, sorted | 20, or its longest   |
| … of BabyAI  | words        | `MISSION_WORDS`                                           | 72                   |

Token 0 fills the rest of the length, 1 stands for an unknown word or character, and 2 + i for entry i of the
vocabulary. Vocabularies are sorted, so tokens are the same in every process. Words are compared in lower case and
without punctuation.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

FILLER, UNKNOWN, FIRST_TOKEN = 0, 1, 2
MISSION_LENGTH = 20  # longest mission of a MiniGrid id: 17 words
# longest mission of BabyAI's grammar: four times "put a red ball in front of you next to …"
BABYAI_MISSION_LENGTH = 72


def mission_words(text: str) -> list[str]:
    """The words of a mission in lower case, without punctuation."""
    return re.findall(r"[^\W_]+", text.lower())


# Every word of the missions of minigrid 3.2.0. The order is part of saved policies: add new words at the end.
MISSION_WORDS = tuple(
    mission_words(
        "a after and at avoid ball behind blue box door end fetch find from front get go goal green grey "
        "hallway in key lava left matching maze must near next object of on open opening pick purple put "
        "reach red right room rooms square the then to traverse unlock up use yellow you your"
    )
)


class Tokenizer:
    """Converts texts to tokens.

    Args:
        vocabulary: entries, in the order of their tokens.
        length: K, tokens per text.
        split: splits a text into entries.
    """

    def __init__(self, vocabulary: Sequence[str], length: int, split: Callable[[str], Sequence[str]]) -> None:
        self.vocabulary = tuple(vocabulary)
        self.length = length
        self.highest = FIRST_TOKEN + len(self.vocabulary) - 1
        self._split = split
        self._tokens = {entry: FIRST_TOKEN + i for i, entry in enumerate(self.vocabulary)}

    def __call__(self, text: Any) -> list[int]:
        """The K tokens of a text.

        Raises:
            TypeError: if `text` is not a string.
            ValueError: if it is longer than K entries.
        """
        if not isinstance(text, str):
            raise TypeError(f"a text observation must be a string, got {text!r}")
        entries = self._split(text)
        if len(entries) > self.length:
            raise ValueError(
                f"the text {text!r} has {len(entries)} tokens, and its space allows {self.length}: correct the "
                "environment's observation_space, or shorten the text in an ObservationWrapper"
            )
        tokens = [self._tokens.get(entry, UNKNOWN) for entry in entries]
        return tokens + [FILLER] * (self.length - len(tokens))


def tokenizer_for(space: Any) -> Tokenizer | None:
    """The tokenizer of a Text or a MissionSpace, told by class name so that minigrid need not be installed.

    None for other spaces.
    """
    names = {cls.__name__ for cls in type(space).__mro__}
    if "Text" in names:
        return Tokenizer(sorted(space.character_set), int(space.max_length), list)
    if "WordSpace" in names:  # amago.envs.space_json
        return Tokenizer(space.vocabulary, space.length, mission_words)
    if "BabyAIMissionSpace" in names:  # it does not know its missions
        return Tokenizer(MISSION_WORDS, BABYAI_MISSION_LENGTH, mission_words)
    if "MissionSpace" in names:
        texts = _example_missions(space)
        others = sorted({word for text in texts for word in mission_words(text)} - {*MISSION_WORDS})
        longest = max(len(mission_words(text)) for text in texts)
        return Tokenizer((*MISSION_WORDS, *others), max(longest, MISSION_LENGTH), mission_words)
    return None


def _example_missions(space: Any) -> list[str]:
    """Missions that together have every word of a MissionSpace; the last one is a longest one."""
    options: list[list[str]] = space.ordered_placeholders or []
    first = [choices[0] for choices in options]
    texts = [
        space.mission_func(*first[:i], choice, *first[i + 1 :])
        for i, choices in enumerate(options)
        for choice in choices
    ]
    longest = [max(choices, key=lambda choice: len(mission_words(choice))) for choices in options]
    return [*texts, space.mission_func(*longest)]
