"""Whether an answer is right: VQA's normal form, exact match, and accuracies against what ten people said.

The normal form is that of VQA's own evaluation (Antol et al., 2015): lower case, no punctuation but in numbers, no
articles, digits for number words, apostrophes where they belong. Of "its" and "it's" both are words, and stay.

    >>> normal_form("The two Dogs, dont they?")
    "2 dogs don't they"
"""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

PEOPLE = 10  # who answered each question of VQA
ARTICLES = ("a", "an", "the")
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
DIGITS = {word: str(i) for i, word in enumerate(NUMBERS)} | {"none": "0"}
PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
CONTRACTIONS = Path(__file__).with_name("contractions.txt").read_text(encoding="utf-8").split()


def _without_some_apostrophes(word: str) -> set[str]:
    parts = word.split("'")
    joints = itertools.product(("", "'"), repeat=len(parts) - 1)
    return {"".join(itertools.chain(*zip(parts, (*joint, ""), strict=True))) for joint in joints} - {word}


APOSTROPHES = {wrong: word for word in CONTRACTIONS for wrong in _without_some_apostrophes(word)}


def normal_form(answer: str) -> str:
    text = plain = " ".join(answer.split())
    number = re.search(r"\d,\d", plain)
    for sign in PUNCTUATION:
        apart = number or f"{sign} " in plain or f" {sign}" in plain
        text = text.replace(sign, "" if apart else " ")
    text = re.sub(r"\.(?!\d)", "", text)
    words = [DIGITS.get(word, word) for word in text.lower().split()]
    return " ".join(APOSTROPHES.get(word, word) for word in words if word not in ARTICLES)


def exact_match(said: str, answers: Sequence[str]) -> float:
    """1 if it is what most people said; where several answers were given equally often, one of them."""
    counts = Counter(map(normal_form, answers))
    return float(counts[normal_form(said)] == max(counts.values()))


def paper_accuracy(said: str, answers: Sequence[str]) -> float:
    """min(1, people who said so / 3), as the paper has it."""
    return min(1.0, _matches(said, answers) / 3)


def official_accuracy(said: str, answers: Sequence[str]) -> float:
    """VQA's own: the same against any nine of the ten, on average."""
    matches, people = _matches(said, answers), len(answers)
    with_one_less = min(1.0, (matches - 1) / 3) if matches else 0.0
    return (matches * with_one_less + (people - matches) * min(1.0, matches / 3)) / people


def kind_of(answers: Sequence[str]) -> str:
    """yes/no, number or other, by what most people said."""
    most, _ = Counter(map(normal_form, answers)).most_common(1)[0]
    if most in ("yes", "no"):
        return "yes/no"
    return "number" if re.fullmatch(r"\d+([.,]\d+)*", most) else "other"


def _matches(said: str, answers: Sequence[str]) -> int:
    return [normal_form(answer) for answer in answers].count(normal_form(said))
