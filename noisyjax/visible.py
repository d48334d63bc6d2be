"""Texts of data and models on their way to a screen: what would command the screen is shown instead of obeyed."""

_PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: "\u2421"}
_C1 = {code: f"⟨{code:02X}⟩" for code in range(0x80, 0xA0)}
_SURROGATES = dict.fromkeys(range(0xD800, 0xE000), "\ufffd")
_UNSAFE = _PICTURES | _C1 | _SURROGATES
_BIDI = {code: f"⟨{code:04X}⟩" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)}


def visible(text: str, *, bidi: bool = True) -> str:
    """`text` with its control characters as pictures: ESC as ␛, NUL as ␀, of C1 and of writing direction as ⟨9B⟩.

    Tabs and line breaks stay, CR LF becomes LF, a lone surrogate becomes U+FFFD. `bidi=False` leaves marks of writing
    direction alone, for a place that contains them otherwise.
    """
    return text.replace("\r\n", "\n").translate(_UNSAFE | _BIDI if bidi else _UNSAFE)


def duration(seconds: float) -> str:
    """`1 h 02 min`, `3 min 20 s`, `12 s`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
