"""Where data come from: each source is a file here (source.py says what it declares), found by its name.

>>> list(of("prepare"))[:3], list(of("folders"))
(['mnist', 'fashion-mnist', 'cifar10'], ['features', 'folder'])
>>> read_leniently("prepare", {"source": "mnist5k", "publik": True}).origin
'mnist'
"""

import functools
import importlib
import inspect
import operator
import pkgutil
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import PydanticUndefined

from stages.sources.source import QuickLook, Source

__all__ = ["QuickLook", "Source", "entry_type", "is_chosen", "known", "of", "read_leniently"]


@functools.cache
def known() -> dict[str, type[Source]]:
    """All sources, by name. Looked for at first use: importing one of them does not import the others."""
    found: dict[str, type[Source]] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for value in vars(module).values():
            is_own = inspect.isclass(value) and issubclass(value, Source) and value.__module__ == module.__name__
            if is_own and not inspect.isabstract(value):
                found |= dict.fromkeys(get_args(value.model_fields["source"].annotation), value)
    return found


def of(section: str) -> dict[str, type[Source]]:
    return {name: cls for name, cls in known().items() if cls.section == section}


def is_chosen(section: str) -> bool:
    """Whether the key `source` chooses among several schemas, whose name is then in the location of a mistake."""
    return len(set(of(section).values())) > 1


def entry_type(section: str) -> Any:
    """The type of an entry of a section of params.yaml, for pydantic."""
    classes = tuple(dict.fromkeys(of(section).values()))
    if not is_chosen(section):
        return classes[0]

    def with_default(value: object) -> object:
        return {**_default(section), **value} if isinstance(value, dict) else value

    either = functools.reduce(operator.or_, classes)
    return Annotated[either, Field(discriminator="source"), BeforeValidator(with_default)]


def read_leniently(section: str, entry: object) -> Source | None:
    """An entry of params.yaml, if need be without its wrong keys, which are reported with the rest of the schema.

    What is missing then is no attribute of it. None: nothing says which source it is.
    """
    if not isinstance(entry, dict):
        return None
    name = {**_default(section), **entry}.get("source")
    cls = of(section).get(name) if isinstance(name, str) else None
    if cls is None:
        return None
    try:
        return cls.model_validate(entry)
    except ValidationError as error:
        wrong = {mistake["loc"][0] for mistake in error.errors() if mistake["loc"]}
        return cls.model_construct(**{key: value for key, value in entry.items() if key not in wrong})


def _default(section: str) -> dict[str, str]:
    """`source` where an entry need not say it."""
    defaults = (cls.model_fields["source"].default for cls in of(section).values())
    return next(({"source": name} for name in defaults if name is not PydanticUndefined), {})
