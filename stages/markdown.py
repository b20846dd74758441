"""A table in Markdown, as compact as a person would write it.

pandas' `to_markdown` pads every cell to the width of its column, so that one changed number changes every line, and
reads numbers in text to format them again.

>>> print(table(["epsilon", "accuracy"], [["1", "91.20"], ["inf", "a|b"]]))
| epsilon | accuracy |
|---|---|
| 1 | 91.20 |
| inf | a\\|b |
"""

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    return "\n".join([_line(header), f"|{'---|' * len(header)}", *map(_line, rows)])


def _line(cells: Iterable[object]) -> str:
    escaped = [str(cell).replace("|", r"\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"
