"""What of a stage's words Prefect is told."""

import hashlib
import uuid

import pytest

from flows.public import public
from flows.steps import last_words

DIGEST = "0c1d2e3f4a5b6c7d8e9f0a1b2c3d4e5f"


@pytest.mark.parametrize("length", [8, 9, 12, 31, 32])
@pytest.mark.parametrize(
    "form",
    ["{}", "{}..", "{}.dir", "'{}'", "md5:{}", "md5_{}", "files/md5/{}", "x{}x", "{}…", "data/a.txt@{}:", "{}\n{}"],
)
def test_no_part_of_a_checksum_that_tells_data_apart_is_left(form, length):
    words = public(f"before {form.format(DIGEST[:length], DIGEST[-length:])} after")
    assert "(checksum)" in words and words.startswith("before ") and words.endswith(" after")
    assert not any(DIGEST[i : i + 4] in words for i in range(len(DIGEST) - 3))
    upper = public(DIGEST[:length].upper())
    assert upper == "(checksum)"


@pytest.mark.parametrize("name", ["0c/1d2e3f", f"0c/{DIGEST[2:]}", f"/cache/files/md5/0c/{DIGEST[2:]}.dir"])
def test_a_name_in_a_cache_is_one(name):
    words = public(f"missing {name}")
    assert words.endswith("(checksum)") and "0c/" not in words


def test_whole_checksums_are_left_out_whatever_their_digits():
    for text in (b"a", b"b", b"c"):
        for algorithm in ("md5", "sha1", "sha256"):
            assert public(hashlib.new(algorithm, text).hexdigest()) == "(checksum)"
    assert public("1" * 32) == public("a" * 32) == "(checksum)"


@pytest.mark.parametrize(
    "words",
    [
        "accuracy 0.12345678, loss 1.2345678e-05. lr 1e-05 or 12345678e-10; n 60000000",
        f"flow run {uuid.UUID(int=0x0190B2C45D6E7F809A1B2C3D4E5F6071)} is late",
        "step-120.safetensors of runs/classification/mnist5k/tiny-clip/batch/eps-0.25/seed-0/model",
        "train@classification-cifar10-efficientnet-lite0-batch-0.5-3: failed to run, exited with 1",
        "2026-10-31 22:56:37.123456 defaced facade, decade 1990",
    ],
)
def test_words_and_numbers_stay_as_they_are(words):
    assert public(words) == words


def test_the_end_of_what_a_stage_said_is_without_checksums():
    output = "\n".join(["early", *25 * ["words"], f"ERROR: failed to pull: missing {DIGEST[:10]}.."])
    assert last_words(output).splitlines() == [*24 * ["words"], "ERROR: failed to pull: missing (checksum)"]
