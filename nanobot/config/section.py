"""What all parts of the schema are made of: the base of a section, and the kinds of values with a range.

Attributes are snake_case. In the file both styles are read and camelCase is written. Keys we do not know are kept.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from nanobot.config.masking import shown
from nanobot.config.spelling import camel


class Section(BaseModel):
    """A part of config.json."""

    # defer_build: a model costs its share of start-up only when a config is really made.
    model_config = ConfigDict(
        alias_generator=camel,
        populate_by_name=True,
        extra="allow",
        allow_inf_nan=False,
        defer_build=True,
        hide_input_in_errors=True,
    )

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """What a log or a traceback would print: no secrets."""
        return ((name, shown((name,), value) if name else value) for name, value in super().__repr_args__())


def empty_is_null(value: object) -> object:
    """An empty text says no more than null."""
    return None if value == "" else value


def _null_is_empty(value: object) -> object:
    return "" if value is None else value


def _not_a_truth(value: object) -> object:
    """`true` where a number belongs is a slip, not a one."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")  # noqa: TRY004 only a ValueError becomes a problem
    return value


def _can_be_sent(headers: dict[str, str]) -> dict[str, str]:
    """What no wire would take is found here, not when a model is asked: then it would look like a dead line."""
    for name, value in headers.items():
        if not _HEADER.fullmatch(name):
            raise ValueError(f"must hold names of HTTP headers, and {name[:60]!r} is none")
        if not (value.isascii() and value.strip().isprintable()):
            raise ValueError(f"must hold plain values of one line, and that of {name[:60]!r} is not")
    return {name: value.strip() for name, value in headers.items()}


_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

Number = BeforeValidator(_not_a_truth)
Text = Annotated[str, BeforeValidator(_null_is_empty)]  # releases before ours wrote null for an empty text
Count = Annotated[int, Number, Field(ge=1)]
Whole = Annotated[int, Number, Field(ge=0)]
Port = Annotated[int, Number, Field(ge=1, le=65535)]
Seconds = Annotated[float, Number, Field(gt=0)]
Millis = Annotated[int, Number, Field(ge=0)]
Retries = Annotated[int, Number, Field(ge=0, le=10)]
Money = Annotated[float, Number, Field(ge=0)]
WebSocketUrl = Annotated[str, Field(pattern=r"^wss?://.+")]
HttpUrl = Annotated[str, Field(pattern=r"^https?://.+")]
NullableUrl = Annotated[HttpUrl | None, BeforeValidator(empty_is_null)]
Ids = list[Annotated[str, Field(coerce_numbers_to_str=True)]]  # people write ids as numbers
StrMap = dict[str, str]
Headers = Annotated[StrMap, AfterValidator(_can_be_sent)]
AnyMap = dict[str, Any]
