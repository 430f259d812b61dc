"""Builds JSON schemas of arguments: `takes("path", path=string("File to read"), limit=integer("Lines"))`.

Every request carries them, so a parameter whose name says everything has no description.
"""

from typing import Any

Schema = dict[str, Any]


def takes(*required: str, **properties: Schema) -> Schema:
    """Return the schema of a tool's arguments; `required` names those that must be given."""
    return {"type": "object", "properties": properties, "required": list(required)}


def string(description: str = "", **more: Any) -> Schema:
    return {"type": "string"} | _description(description) | more


def integer(description: str = "", **more: Any) -> Schema:
    return {"type": "integer"} | _description(description) | more


def number(description: str = "", **more: Any) -> Schema:
    return {"type": "number"} | _description(description) | more


def boolean(description: str = "", **more: Any) -> Schema:
    return {"type": "boolean"} | _description(description) | more


def array(description: str, **more: Any) -> Schema:
    """An array of strings."""
    return {"type": "array", "items": {"type": "string"}, "description": description, **more}


def _description(description: str) -> Schema:
    return {"description": description} if description else {}
