"""Conversion between snake_case (Python) and camelCase (the file)."""


def camel(name: str) -> str:
    """The name in camelCase: `e2ee_enabled` becomes `e2eeEnabled`; camelCase stays."""
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest) if head else name
