"""The caption metrics with real Java: against arithmetic, against pycocoevalcap called directly, on odd captions."""

import json
import math
import os
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import psutil
import pytest
from pycocoevalcap.meteor.meteor import Meteor

from stages.errors import UserError
from stages.tasks.base.results import Metrics, mean_interval
from stages.tasks.measures import caption_scores
from stages.tasks.measures.caption_scores import CaptionScores, meteor_program, require_java, score

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("captions")]  # Java, and METEOR's tables, loaded once
BLEU = ("bleu_1", "bleu_2", "bleu_3", "bleu_4")
needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="no Java: infra/system-packages java installs it")

# Five images: what was generated, and the references.
CASES = [
    ("a red ball on a table", ["a red ball on a table"]),
    ("a red ball", ["a red ball on a table"]),
    ("the the the the", ["the cat is on the mat", "there is a cat here"]),
    ("a dog runs on grass", ["a dog runs", "the dog is running on green grass"]),
    ("mat the on cat", ["cat on the mat"]),
]


def scored(pairs: list[tuple[str, list[str]]], jars: Path | None = None) -> CaptionScores:
    return score([references for _, references in pairs], [caption for caption, _ in pairs], jars)


@pytest.fixture(scope="module")
def running() -> Iterator[Callable[[], AbstractContextManager[Meteor]]]:
    """METEOR reads its tables for ten seconds: one program serves all tests that are about scores, not about it."""
    with meteor_program() as scorer:
        yield lambda: nullcontext(scorer)


@pytest.fixture
def one_meteor(running, monkeypatch) -> None:
    monkeypatch.setattr(caption_scores, "meteor_program", running)


@pytest.fixture(scope="module")
def cases(running) -> CaptionScores:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(caption_scores, "meteor_program", running)
        return scored(CASES)


# Against arithmetic


@needs_java
def test_bleu_of_an_image_is_what_one_computes_by_hand(cases):
    """The geometric mean of the shares of n-grams that a reference has (each as often as in one reference at most),
    times exp(1 - r/c) where the caption (c words) is shorter than the reference nearest in length (r words)."""
    by_hand = [
        (1, 1, 1, 1),
        # 3/3 words, 2/2 pairs, 1/1 triples; there is no 4-gram, for which pycocoevalcap takes 1e-15/1e-9; r/c = 6/3
        tuple(math.exp(1 - 6 / 3) * share for share in (1, 1, 1, 1e-6 ** (1 / 4))),
        # `the` is twice in a reference, so 2/4; no pair; the nearest length to 4 is 5, not 6
        (math.exp(1 - 5 / 4) * 2 / 4, 0, 0, 0),
        # 5/5 words; 2/4 pairs: a dog, dog runs; 1/3 triples: a dog runs; 0/2; of lengths 3 and 7 the shorter
        (1, (5 / 5 * 2 / 4) ** (1 / 2), (5 / 5 * 2 / 4 * 1 / 3) ** (1 / 3), 0),
        # 4/4 words, in no order of the reference
        (1, 0, 0, 0),
    ]
    for image, expected in enumerate(by_hand):
        found = [cases.per_image[name][image] for name in BLEU]
        assert found == pytest.approx(expected, abs=2e-4), CASES[image]  # what is 0 here is almost 0 there


@needs_java
def test_bleu_of_the_corpus_counts_all_images_together(cases):
    # words 6/6 3/3 2/4 5/5 4/4, pairs 5/5 2/2 0/3 2/4 0/3, triples 4/4 1/1 0/2 1/3 0/2, 4-grams 3/3 0/0 0/1 0/2 0/1
    shares = (20 / 22, 9 / 17, 6 / 12, 3 / 7)
    brevity = math.exp(1 - (6 + 6 + 5 + 3 + 4) / (6 + 3 + 4 + 5 + 4))
    for n, name in enumerate(BLEU, start=1):
        assert cases.corpus[name] == pytest.approx(brevity * math.prod(shares[:n]) ** (1 / n), abs=1e-6)


@needs_java
def test_rouge_l_is_what_one_computes_by_hand(cases):
    """F with beta 1.2 of the longest common subsequence: the best precision and the best recall over references."""

    def f(precision: float, recall: float) -> float:
        return (1 + 1.2**2) * precision * recall / (recall + 1.2**2 * precision)

    by_hand = [
        1,
        f(3 / 3, 3 / 6),
        f(2 / 4, 2 / 6),  # the ... the
        f(3 / 5, 3 / 3),  # a dog runs; of the other reference: dog ... on ... grass
        f(1 / 4, 1 / 4),  # any one word
    ]
    assert cases.per_image["rouge_l"] == pytest.approx(by_hand)
    assert cases.corpus["rouge_l"] == pytest.approx(statistics.fmean(by_hand))


@needs_java
def test_the_interval_is_that_of_the_mean_cider(cases):
    values = cases.per_image["cider"]
    assert statistics.fmean(values) == pytest.approx(cases.corpus["cider"])
    half = 1.96 * statistics.stdev(values) / math.sqrt(5)
    assert cases.interval() == pytest.approx((cases.corpus["cider"] - half, cases.corpus["cider"] + half))


def test_an_interval_stays_where_values_can_be():
    assert mean_interval([[0.0], [0.0], [0.3]], 0, 10)[0] == 0
    assert mean_interval([[0.5]], 0, 10) == (0, 10)


# Against pycocoevalcap


@needs_java
def test_scores_are_those_of_pycocoevalcap_called_directly():
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    pairs = [
        ("Two dogs play in the snow.", ["Two dogs are playing in deep snow .", "A brown dog, and a black one, run!"]),
        ("a man on a bike", ["A man's bike stands by a wall", "A man (in red) rides a bike", "someone rides a bike"]),
        ("the sea at night", ["A boat on the sea - at night", "The sea; dark."]),
        ("a cup of café crème", ["A cup of café crème on a table"]),
    ]
    references = {i: [{"caption": text} for text in texts] for i, (_, texts) in enumerate(pairs)}
    captions = {i: [{"caption": caption}] for i, (caption, _) in enumerate(pairs)}
    said, generated = PTBTokenizer().tokenize(references), PTBTokenizer().tokenize(captions)
    expected = dict(zip(BLEU, zip(*Bleu(4).compute_score(said, generated, verbose=0), strict=True), strict=True))
    for name, scorer in (("rouge_l", Rouge()), ("cider", Cider()), ("meteor", Meteor())):
        expected[name] = scorer.compute_score(said, generated)

    found = scored(pairs)
    assert set(found.corpus) == set(found.per_image) == set(expected)
    for name, (corpus, each) in expected.items():
        assert found.corpus[name] == corpus and found.per_image[name] == list(each), name
    assert 0 < found.corpus["bleu_4"] < 1 and 0 < found.corpus["meteor"] < 1 and found.corpus["cider"] > 0


# Odd captions


@needs_java
def test_a_caption_without_words_scores_nothing_and_counts(cases, one_meteor):
    found = scored([*CASES, ("", ["a cat", "a cat on a mat"]), (" ...", ["a cat", "."])])
    assert {name: values[5:] for name, values in found.per_image.items()} == {name: [0, 0] for name in found.per_image}
    assert found.corpus["rouge_l"] == pytest.approx(cases.corpus["rouge_l"] * 5 / 7)  # a mean over images
    assert found.corpus["meteor"] < cases.corpus["meteor"]
    assert found.corpus["bleu_1"] == pytest.approx(math.exp(1 - (24 + 2 + 0) / 22) * 20 / 22)


@needs_java
def test_a_model_that_says_nothing_at_all_scores_nothing(one_meteor):
    found = scored([("", ["a cat"]), ("", ["a dog"])])
    assert set(found.corpus.values()) == {0.0} and found.interval() == (0, 0)
    json.dumps(found.corpus, allow_nan=False)


@needs_java
def test_odd_characters_stay_with_their_image(one_meteor):
    """Line ends of every kind, METEOR's separator, letters of other scripts: the others' scores do not move."""
    odd = ["one\ntwo\r\nthree", "x\u2028y\x85z\x0bw\x0c\u2029v", "a ||| b|||c", "猫が座っている", "\t", "😀 naïve café"]
    plain = scored([*CASES, *((f"w{i}", [f"w{i} v{i}"]) for i in range(len(odd)))])
    found = scored([*((text, [text, f"the {text}"]) for text in odd), *CASES])
    for name in ("bleu_1", "bleu_4", "rouge_l", "meteor"):
        assert found.per_image[name][len(odd) :] == plain.per_image[name][:5], name
    for image in (0, 1, 2, 3, 5):  # said as the reference says it
        assert found.per_image["rouge_l"][image] == found.per_image["meteor"][image] == 1, odd[image]
        assert found.per_image["bleu_1"][image] == pytest.approx(1) and found.per_image["cider"][image] > 1, odd[image]
    assert found.per_image["bleu_4"][4] == found.per_image["meteor"][4] == 0


@needs_java
def test_non_ascii_words_are_compared_as_they_are(one_meteor):
    found = scored([("un café noir", ["un café noir"]), ("un cafe noir", ["un café noir"]), ("a dog", ["a dog"])])
    assert found.per_image["bleu_1"] == pytest.approx([1, 2 / 3, 1])
    assert found.per_image["meteor"][0] == 1 > found.per_image["meteor"][1] > 0


@needs_java
def test_a_caption_of_500_words_is_scored(one_meteor):
    long = " ".join(f"word{i}" for i in range(500))
    found = scored([(long, ["a cat", long]), (long, ["word3 word4"]), ("a cat", ["a cat"])])
    assert found.per_image["rouge_l"][0] == found.per_image["meteor"][0] == 1
    assert found.per_image["bleu_1"] == pytest.approx([1, 2 / 500, 1])


@needs_java
def test_references_are_needed():
    with pytest.raises(UserError, match=r"1 test images have no reference caption, the first of them in row 1"):
        scored([("a cat", ["a cat"]), ("a dog", [])])
    with pytest.raises(UserError, match="no reference caption of the test split has a word"):
        scored([("a cat", ["."])])


# Java


def test_without_java_there_is_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for call in (require_java, lambda: scored(CASES)):
        with pytest.raises(UserError, match=r"need Java.*sudo apt-get install default-jre-headless"):
            call()


def fake_java(folder: Path, monkeypatch, program: str, body: str) -> None:
    """A `java` that does `body` in place of one program, and is the real one for the others."""
    text = f"#!{sys.executable}\nimport json, os, sys\nif not any({program!r} in word for word in sys.argv[1:]):\n"
    text += f"    os.execv({shutil.which('java')!r}, ['java', *sys.argv[1:]])\n{body}\n"
    (folder / "bin").mkdir()
    (folder / "bin" / "java").write_text(text)
    (folder / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")


def children() -> list[str]:
    return [process.name() for process in psutil.Process().children(recursive=True)]


@needs_java
@pytest.mark.timeout(120)
def test_a_failing_meteor_is_told_and_ended_and_the_other_scores_stay(tmp_path, monkeypatch, cases):
    body = """
print("Error: no memory left", file=sys.stderr)
for line in sys.stdin:
    print("nonsense", flush=True)
"""
    before = children()
    fake_java(tmp_path, monkeypatch, "meteor", body)
    found = scored(CASES)
    assert found.not_run["meteor"] == "its program failed: Error: no memory left"
    assert found.corpus == {name: value for name, value in cases.corpus.items() if name != "meteor"}
    assert children() == before


@needs_java
@pytest.mark.timeout(120)
def test_meteors_process_ends_also_when_it_is_interrupted():
    with pytest.raises(KeyboardInterrupt), meteor_program() as scorer:
        scorer.lock.acquire()  # as in the middle of a computation
        raise KeyboardInterrupt
    assert scorer.meteor_p.returncode is not None
    assert not scorer.lock.locked()  # or the end of the object would wait for it


@needs_java
def test_a_failing_tokenizer_is_an_error_with_what_it_said(tmp_path, monkeypatch):
    fake_java(tmp_path, monkeypatch, "PTBTokenizer", "sys.exit('Error: this Java is too old')")
    with pytest.raises(UserError, match=r"tokenizer .* failed: Error: this Java is too old"):
        scored(CASES)


@needs_java
def test_nothing_is_printed_and_no_process_stays_behind(capfd):
    before = children()
    scored(CASES)
    assert capfd.readouterr() == ("", "")
    assert children() == before


@needs_java
def test_the_users_language_changes_no_score(monkeypatch, cases):
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Duser.language=de -Duser.country=DE")
    assert scored(CASES).corpus == cases.corpus
    assert os.environ["JAVA_TOOL_OPTIONS"] == "-Duser.language=de -Duser.country=DE"


# metrics.json


def test_what_was_not_run_stands_beside_the_scores_and_is_none():
    metrics = Metrics(primary="cider", n=3, low=0.1, high=0.3, cider=0.2, bleu_1=0.5, not_run={"spice": "no files"})
    assert metrics.scores == {"cider": 0.2, "bleu_1": 0.5} and metrics.score == 0.2
    again = Metrics.model_validate_json(metrics.model_dump_json())
    assert again == metrics and again.not_run == {"spice": "no files"}
    plain = Metrics(primary="accuracy", n=3, low=0.1, high=0.3, accuracy=0.2)
    assert list(plain.model_dump()) == ["primary", "n", "low", "high", "accuracy"] and plain.not_run == {}
