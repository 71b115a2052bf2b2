"""Names that students, and whoever collects their work, have chosen: as text, and as names of files."""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata

LONGEST = 100  # bytes: what is written aside has a longer name, and a file system takes 255
PLAIN = re.compile(r"[\w(][\w .,'()@+-]*(?<![ .])")
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)([. ].*)?", re.IGNORECASE)  # no file names on Windows


def as_text(name: str) -> str:
    r"""The name of a file as it can be written anywhere: bytes that are no text become `\xff`."""
    return os.fsencode(name).decode(errors="backslashreplace")


def file_name(text: str) -> str:
    """A name for the file about this: the text itself where that can be one, and never another's.

    What had to be changed ends with a digest after a `~`, which no name that was left as it is has.
    """
    whole = len(text.encode(errors="replace")) <= LONGEST and unicodedata.is_normalized("NFC", text)
    if whole and PLAIN.fullmatch(text) and not RESERVED.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{re.sub('[^A-Za-z0-9]+', '_', text)[:40]}~{digest}"
