"""Start JupyterLab in half the time: `python -m course_lib.lab.server` takes the same options as `jupyter lab`."""

from __future__ import annotations

import sys


def main() -> None:
    """Serve until stopped.

    When imported, jsonschema builds a parser for RFC 3987 addresses in notebooks, which takes two seconds of CPU time.
    We hide the package that it needs for that; no notebook of ours has such addresses.
    """
    sys.modules.setdefault("rfc3987_syntax", None)  # pyright: ignore[reportArgumentType]
    from jupyterlab.labapp import main as serve

    serve()


if __name__ == "__main__":
    main()
