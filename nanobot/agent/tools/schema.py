"""JSON schemas of arguments, in few words: `takes("path", path=string("File to read"), limit=integer("Lines"))`.

Every request carries them, so a name that says it all stands without a description.
"""

from typing import Any

Schema = dict[str, Any]


def takes(*required: str, **properties: Schema) -> Schema:
    """The schema of a tool's arguments: those named first must be given."""
    return {"type": "object", "properties": properties, "required": list(required)}


def string(description: str = "", **more: Any) -> Schema:
    """A text."""
    return {"type": "string"} | _described(description) | more


def integer(description: str = "", **more: Any) -> Schema:
    """A whole number."""
    return {"type": "integer"} | _described(description) | more


def number(description: str = "", **more: Any) -> Schema:
    """A number."""
    return {"type": "number"} | _described(description) | more


def boolean(description: str = "", **more: Any) -> Schema:
    """Yes or no."""
    return {"type": "boolean"} | _described(description) | more


def array(description: str, **more: Any) -> Schema:
    """Several texts."""
    return {"type": "array", "items": {"type": "string"}, "description": description, **more}


def _described(description: str) -> Schema:
    return {"description": description} if description else {}
