"""JupyterLab's server, started in half the time: `python -m course_lib.lab.server` takes what `jupyter lab` takes."""

from __future__ import annotations

import sys


def main() -> None:
    """Serve until stopped.

    To check addresses in notebooks to the letter of RFC 3987, jsonschema builds a parser when it is imported, which
    takes two seconds of a processor. It does without where there is none, and no notebook of ours has such addresses.
    """
    sys.modules.setdefault("rfc3987_syntax", None)  # pyright: ignore[reportArgumentType]
    from jupyterlab.labapp import main as serve

    serve()


if __name__ == "__main__":
    main()
