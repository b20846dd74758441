"""English for generated captions and questions."""


def an(words: object) -> str:
    """
    >>> an("orange star"), an("star")
    ('an orange star', 'a star')
    """
    return f"{'an' if str(words)[0] in 'aeiou' else 'a'} {words}"


def plural(shape: str) -> str:
    """
    >>> plural("star"), plural("cross")
    ('stars', 'crosses')
    """
    return shape + ("es" if shape.endswith("s") else "s")
