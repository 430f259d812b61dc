"""The base class of all config sections, and value types with a range.

Attributes are snake_case. The file may use both styles; camelCase is written. Unknown keys are preserved.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from nanobot.config.masking import mask_value
from nanobot.config.spelling import camel


class Section(BaseModel):
    """A section of config.json."""

    # defer_build: models are built when a config is first created, not at import.
    model_config = ConfigDict(
        alias_generator=camel,
        populate_by_name=True,
        extra="allow",
        allow_inf_nan=False,
        defer_build=True,
        hide_input_in_errors=True,
    )

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Masks secrets in logs and tracebacks."""
        return ((name, mask_value((name,), value) if name else value) for name, value in super().__repr_args__())


RESTRICTS = object()
"""Marks a key that removes rights or limits spending. Misspelling such a key is an error, not just a warning."""


def empty_is_null(value: object) -> object:
    """Treat an empty string as null."""
    return None if value == "" else value


def _null_is_empty(value: object) -> object:
    return "" if value is None else value


def _reject_bool(value: object) -> object:
    """Reject `true` as a number, which Python would read as 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")  # noqa: TRY004 only a ValueError becomes a problem
    return value


def _validate_headers(headers: dict[str, str]) -> dict[str, str]:
    """Reject headers that HTTP cannot carry, which would otherwise look like a connection failure."""
    for name, value in headers.items():
        if not _HEADER.fullmatch(name):
            raise ValueError(f"must contain HTTP header names; {name[:60]!r} is not one")
        if not (value.isascii() and value.strip().isprintable()):
            raise ValueError(f"must contain printable one-line values; that of {name[:60]!r} is not")
    return {name: value.strip() for name, value in headers.items()}


_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

Number = BeforeValidator(_reject_bool)
Text = Annotated[str, BeforeValidator(_null_is_empty)]  # earlier releases wrote null for an empty string
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
Ids = list[Annotated[str, Field(coerce_numbers_to_str=True)]]  # users write ids as numbers
StrMap = dict[str, str]
Headers = Annotated[StrMap, AfterValidator(_validate_headers)]
AnyMap = dict[str, Any]
ApiType = Annotated[
    Literal["auto", "chat_completions", "responses"],
    BeforeValidator(lambda value: value or "auto"),  # earlier releases wrote null
]
