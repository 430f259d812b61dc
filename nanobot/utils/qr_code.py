"""QR codes as text, for terminals."""

from io import StringIO


def qr_code(text: str) -> str:
    """Draw a QR code with block characters; its light squares are filled, as on a dark terminal."""
    import segno  # only logins need it

    drawing = StringIO()
    segno.make_qr(text, error="l").terminal(drawing, border=2, compact=True)
    return drawing.getvalue()
