"""VQA's normal form of an answer and its accuracies, against cases worked out by hand."""

import pytest

from stages.tasks.measures.answers import exact_match, kind_of, normal_form, official_accuracy, paper_accuracy


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Dog", "dog"),
        ("a dog", "dog"),
        ("an apple", "apple"),
        ("The Dog", "dog"),
        ("two", "2"),
        ("none", "0"),
        ("ten people", "10 people"),
        ("eleven", "eleven"),
        ("it's", "it's"),
        ("its", "its"),
        ("dont", "don't"),
        ("couldntve", "couldn't've"),
        ("couldn'tve", "couldn't've"),
        ("yes.", "yes"),
        ("3.5", "3.5"),
        ("1,000", "1000"),
        ("red-blue", "red blue"),
        ("red, blue", "red blue"),
        ("yes!", "yes"),
        ("is it red?", "is it red"),
        ("garbage_bin", "garbage bin"),
        ("  on \n the\ttable ", "on table"),
        ("", ""),
        ("?", ""),
        ("the", ""),
        ("größer", "größer"),
        ('he said "no"', "he said no"),
        ("5'", "5'"),
    ],
)
def test_the_normal_form(answer, expected):
    assert normal_form(answer) == expected


def people(**said: int) -> list[str]:
    return [answer for answer, times in said.items() for _ in range(times)]


@pytest.mark.parametrize(
    ("said", "answers", "exact", "paper", "official"),
    [
        ("red", people(red=10), 1, 1, 1),
        ("red", people(red=9, blue=1), 1, 1, 1),
        ("blue", people(red=9, blue=1), 0, 1 / 3, 0.3),  # nine sets with it: 1/3 each; one without: 0
        ("blue", people(red=8, blue=2), 0, 2 / 3, 0.6),  # eight sets have both, two sets one: (8 * 2/3 + 2 * 1/3) / 10
        ("blue", people(red=7, blue=3), 0, 1, 0.9),  # seven sets have all three, three have two: (7 + 3 * 2/3) / 10
        ("blue", people(red=6, blue=4), 0, 1, 1),
        ("blue", people(red=5, blue=5), 1, 1, 1),  # a tie: either is what most people said
        ("green", people(red=5, blue=5), 0, 0, 0),
        (
            "green",
            people(red=1, blue=1, green=1, white=1, black=1, pink=1, gray=1, teal=1, brown=1, gold=1),
            1,
            1 / 3,
            0.3,
        ),
        ("two", ["2"] * 6 + ["two"] * 4, 1, 1, 1),
        ("a dog", ["dog"] * 10, 1, 1, 1),
        ("its", ["it's"] * 10, 0, 0, 0),
        ("", ["no"] * 10, 0, 0, 0),
        ("", ["", "no"] + ["yes"] * 8, 0, 1 / 3, 0.3),
        ("Yes!", ["yes"] * 3 + ["no"] * 7, 0, 1, 0.9),
    ],
)
def test_accuracies_worked_out_by_hand(said, answers, exact, paper, official):
    assert len(answers) == 10
    assert exact_match(said, answers) == exact
    assert paper_accuracy(said, answers) == pytest.approx(paper)
    assert official_accuracy(said, answers) == pytest.approx(official)


@pytest.mark.parametrize("matches", range(11))
def test_the_official_accuracy_is_the_papers_over_all_nine_of_ten_and_agrees_at_the_ends(matches):
    answers = ["yes"] * matches + ["no"] * (10 - matches)
    nine = [answers[:i] + answers[i + 1 :] for i in range(10)]
    official = official_accuracy("yes", answers)
    assert official == pytest.approx(sum(paper_accuracy("yes", some) for some in nine) / 10)
    assert official <= paper_accuracy("yes", answers)
    if matches == 0 or matches >= 4:
        assert official == paper_accuracy("yes", answers)


def test_one_answer_matches_or_does_not():
    assert exact_match("4", ["four"]) == 1 and exact_match("five", ["four"]) == 0


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        (["Yes"], "yes/no"),
        (["no"] * 6 + ["2"] * 4, "yes/no"),
        (["three"], "number"),
        (["1,000"], "number"),
        (["3.5"], "number"),
        (["red"], "other"),
        ([""], "other"),
        (["2 dogs"], "other"),
    ],
)
def test_kinds(answers, kind):
    assert kind_of(answers) == kind
