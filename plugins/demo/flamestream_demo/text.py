"""Words of a text: the tokeniser and the stemmer of the inverted index.

A *token* starts at a letter or a decimal digit (Unicode categories Lu, Ll, Lt, Lm, Lo, Nd) and goes on with those, "-"
or "_". It is lowercased and *stemmed*: by Snowball English (porter2) when its first character is a–z, otherwise by
Snowball Russian in the form that treats ё as a separate letter.
"""

from __future__ import annotations

import re
from functools import lru_cache

_RUN = re.compile(r"[^\W_][\w-]*")
# \w is letters, decimal digits, "_", and numbers that are no decimal digits (², ½, Ⅳ; No and Nl). A character class
# without those costs ten times as much, so runs are cut by this one, and the rare run that holds such a number is cut
# again. A token never crosses the border of a run.

_CACHED_RUNS = 1 << 16
_SHIELD = "\ue000"  # of private use, hence in no token, and no letter to the stemmer


def _ends_token(character: str) -> bool:
    """Return whether a character of a run is a number that is no decimal digit."""
    return character.isnumeric() and not character.isdecimal() and not character.isalpha()


def tokens(text: str) -> list[str]:
    """Return the tokens of a text as they are written, in order.

    >>> tokens("Well-known: x_1, 10 м² and _private")
    ['Well-known', 'x_1', '10', 'м', 'and', 'private']
    """
    cut = "".join(" " if _ends_token(character) else character for character in text)
    return _RUN.findall(cut)


def stem(token: str) -> str:
    """Return the stem of a token, the word it counts as.

    Newer versions of the Russian stemmer read ё as е; here it stays ё, and is no vowel.

    >>> stem("Running"), stem("Сборная"), stem("Ещё")
    ('run', 'сборн', 'ещё')
    """
    import snowballstemmer  # takes longer to import than the rest of a small job

    word = token.lower()
    # A stemmer keeps the word it works on: one for each call keeps this function free of state.
    if "a" <= word[0] <= "z":
        return str(snowballstemmer.stemmer("english").stemWord(word))
    shielded = word.replace("ё", _SHIELD)
    return str(snowballstemmer.stemmer("russian").stemWord(shielded)).replace(_SHIELD, "ё")


@lru_cache(_CACHED_RUNS)
def _stem_run(run: str) -> str:
    """Return the stem of a run that is one token, or an empty text to cut it again."""
    return "" if not run.isascii() and any(map(_ends_token, run)) else stem(run)


def stems(text: str) -> list[str]:
    """Return the stem of every token of a text, in order."""
    found = [*map(_stem_run, _RUN.findall(text))]
    if "" in found:
        return [*map(_stem_run, tokens(text))]
    return found


def occurrences(text: str) -> dict[str, list[int]]:
    """Return the positions of each word in a text.

    Returns:
        Stem → the 0-based ordinals of its tokens among all tokens, ascending; stems in order of first occurrence.

    >>> occurrences("The dogs, the cat - a dog")
    {'the': [0, 2], 'dog': [1, 5], 'cat': [3], 'a': [4]}
    """
    found: dict[str, list[int]] = {}
    for ordinal, word in enumerate(stems(text)):
        ordinals = found.get(word)
        if ordinals is None:
            found[word] = [ordinal]
        else:
            ordinals.append(ordinal)
    return found
