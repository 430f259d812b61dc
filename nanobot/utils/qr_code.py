"""QR codes, for terminals and for the page."""

from io import StringIO


def qr_rows(text: str) -> list[str]:
    """The rows of a QR code: 1 for a dark square, 0 for a light one."""
    import segno  # only logins and links need it

    return ["".join(map(str, row)) for row in segno.make_qr(text, error="l").matrix]


def qr_code(text: str) -> str:
    """Draw a QR code with block characters; its light squares are filled, as on a dark terminal."""
    import segno  # as above

    drawing = StringIO()
    segno.make_qr(text, error="l").terminal(drawing, border=2, compact=True)
    return drawing.getvalue()
