"""What Prefect's server may keep of what a stage or DVC said: not a checksum of private data, nor a part of one.

DVC names what it cannot find by its checksum. Eight hexadecimal digits are enough to tell two datasets apart.

>>> public("missing: files/md5/1a/2b3c4d5e6f, md5 9f8e7d6c.., data 0c1d2e3f4a5b.dir")
'missing: files/md5/(checksum), md5 (checksum), data (checksum)'
>>> public("loss 0.12345678, lr 1.2345678e-05, run 0190b2c4-5d6e-7f80-9a1b-2c3d4e5f6071, 20000101 bytes, defaced")
'loss 0.12345678, lr 1.2345678e-05, run 0190b2c4-5d6e-7f80-9a1b-2c3d4e5f6071, 20000101 bytes, defaced'
"""

import re

DIGITS, WHOLE = 8, 30  # of a checksum that are too many; from there on it is one even if it looks like a number
KEPT = (
    r"(?<![0-9a-f])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f])",  # a random name, as Prefect gives to runs
    r"(?<![0-9a-z.])\d+(?:\.\d+(?:e[-+]?\d{1,3})?|e[-+]\d{1,3})(?!\.?[0-9a-z])",  # a number
)
# DVC's cache has a folder for the first two digits.
CHECKSUM = r"(?P<checksum>(?:(?<![0-9a-f])[0-9a-f]{2}/)?[0-9a-f]{6,})(?:\.dir\b|\.{2,}|…)?"
WORDS = re.compile("|".join((*KEPT, CHECKSUM)), re.IGNORECASE)


def public(text: str) -> str:
    return WORDS.sub(_without_checksum, text)


def _without_checksum(found: re.Match) -> str:
    digits = (found["checksum"] or "").replace("/", "")
    if len(digits) < DIGITS or (len(digits) < WHOLE and (digits.isdecimal() or digits.isalpha())):
        return found[0]
    return "(checksum)"
