"""What the sections of params.yaml are made of."""

from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

T = TypeVar("T")
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
PositiveInt = Annotated[int, Field(gt=0, strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
PositiveFloat = Annotated[Number, Field(gt=0)]
Fraction = Annotated[Number, Field(gt=0, lt=1)]
Seed = Annotated[int, Field(ge=0, strict=True)]


def _auto_or_count(value: object) -> object:
    """One mistake in place of one per kind of value."""
    if value != "auto" and not (type(value) is int and value >= 0):
        raise ValueError(f"write auto, or a whole number from 0 on; got {value!r}")
    return value


AutoOrCount = Annotated[Literal["auto"] | int, BeforeValidator(_auto_or_count)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _no_repeats(values: list) -> list:
    if repeated := [v for v in dict.fromkeys(values) if values.count(v) > 1]:
        raise ValueError(f"{', '.join(map(repr, repeated))} is there more than once")
    return values


Axis = Annotated[list[T], Field(min_length=1), AfterValidator(_no_repeats)]
