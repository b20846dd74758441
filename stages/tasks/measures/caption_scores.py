"""Scores of generated captions against references, by pycocoevalcap: its PTB tokenizer, then BLEU, ROUGE-L, CIDEr,
METEOR and, where its files are, SPICE. The tokenizer, METEOR and SPICE are Java programs.

A caption without words (nothing generated, or only punctuation) scores 0 everywhere and counts: it makes BLEU's corpus
shorter, and stands in every mean. CIDEr weighs words by how few of the images they are said of, so it depends on the
test split as a whole: values of two splits do not compare, and on a split of one image it is 0.
"""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.meteor.meteor import Meteor
from pycocoevalcap.rouge.rouge import Rouge
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

from stages.errors import UserError
from stages.tasks.base.results import mean_interval
from stages.tasks.measures import spice
from stages.tasks.measures.java import NotRun, last_words, options, require_java, stderr_kept

__all__ = ["CaptionScores", "require_java", "score"]

CIDER_RANGE = (0.0, 10.0)
ENGLISH = "-Duser.language=en -Duser.country=US"

Texts = dict[int, list[str]]  # by image, as pycocoevalcap takes them


@dataclass(frozen=True)
class CaptionScores:
    """By name: bleu_1 to bleu_4, rouge_l, cider, meteor, spice. Each is in `corpus` or, with a reason, in `not_run`."""

    corpus: dict[str, float]
    per_image: dict[str, list[float]]
    not_run: dict[str, str]

    def interval(self) -> tuple[float, float]:
        """95% interval of the mean CIDEr over images: ± 1.96 standard errors."""
        return mean_interval([[value] for value in self.per_image["cider"]], *CIDER_RANGE)


def score(references: list[list[str]], captions: list[str], spice_jars: Path | None) -> CaptionScores:
    """Of one caption for each image. `spice_jars` is the folder with SPICE's files that the user set, if any."""
    require_java()
    said, generated = tokenized(references), tokenized([[caption] for caption in captions])
    if not any(text for texts in said.values() for text in texts):
        raise UserError("no reference caption of the test split has a word in it")
    found: dict[str, tuple[float, Sequence[float]]] = {}
    for n, (mean, each) in enumerate(zip(*Bleu(4).compute_score(said, generated, verbose=0), strict=True), start=1):
        found[f"bleu_{n}"] = mean, each
    found["rouge_l"] = rouge_l(said, generated)
    found["cider"] = Cider().compute_score(said, generated)
    not_run = {}
    for name, compute in (("meteor", meteor), ("spice", lambda said, generated: by_spice(said, generated, spice_jars))):
        try:
            found[name] = compute(said, generated)
        except NotRun as reason:
            not_run[name] = str(reason)
    return CaptionScores(
        {name: float(mean) for name, (mean, _) in found.items()},
        {name: [float(value) for value in each] for name, (_, each) in found.items()},
        not_run,
    )


def tokenized(texts: Sequence[Sequence[str]]) -> Texts:
    """In lower case, without punctuation, words apart by one blank."""
    # Java ends a line at more characters than pycocoevalcap removes; all later texts would belong to other images.
    lines = {i: [{"caption": " ".join(text.split())} for text in of_image] for i, of_image in enumerate(texts)}
    if without := [i for i, of_image in lines.items() if not of_image]:
        raise UserError(f"{len(without)} test images have no reference caption, the first of them in row {without[0]}")
    with stderr_kept() as printed:
        words = PTBTokenizer().tokenize(lines)
        if {i: len(of_image) for i, of_image in words.items()} != {i: len(of_image) for i, of_image in lines.items()}:
            printed.seek(0)
            said = last_words(printed.read().decode(errors="replace"))
            raise UserError(f"the tokenizer of the caption metrics, a Java program, failed: {said}")
    return {i: [" ".join(text.split()) for text in of_image] for i, of_image in words.items()}


def rouge_l(said: Texts, generated: Texts) -> tuple[float, list[float]]:
    _, each = Rouge().compute_score(said, generated)
    # To it, no words are one empty word, which a reference without words has in common with it.
    each = [value if generated[i][0] else 0.0 for i, value in enumerate(each)]
    return statistics.fmean(each), each


def meteor(said: Texts, generated: Texts) -> tuple[float, list[float]]:
    with meteor_program() as scorer:
        try:
            return scorer.compute_score(said, generated)
        except (OSError, ValueError):  # no answer, or none that is a number
            scorer.meteor_p.kill()
            printed = scorer.meteor_p.stderr.read().decode(errors="replace")
            raise NotRun(f"its program failed: {last_words(printed)}") from None


def by_spice(said: Texts, generated: Texts, jars: Path | None) -> tuple[float, list[float]]:
    each = [0.0] * len(generated)
    worded = [i for i, (text,) in generated.items() if text]
    values = spice.scores([said[i] for i in worded], [generated[i][0] for i in worded], jars)
    for i, value in zip(worded, values, strict=True):
        each[i] = value
    return statistics.fmean(each), each


@contextmanager
def meteor_program() -> Iterator[Meteor]:
    """It ends with the block. Left to itself it waits, after a failure, for ever for a lock that is still taken."""
    with options("JAVA_TOOL_OPTIONS", ENGLISH):  # it writes numbers in the user's language, and reads English ones
        scorer = Meteor()
    try:
        yield scorer
    finally:
        scorer.meteor_p.kill()
        with suppress(BrokenPipeError), scorer.meteor_p:  # closes its pipes and waits
            pass
        if scorer.lock.locked():
            scorer.lock.release()
