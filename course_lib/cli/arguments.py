"""The types of the `course` command's arguments, and how a command ends when it cannot do what you asked.

The command then prints one sentence that says what to do instead, and returns an exit status.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from course_lib.launchers import Detached, LaunchError
from course_lib.launchers.local import MAX_RANKS, MAX_TIMEOUT
from course_lib.machine import MAX_SEED

MAX_COUNT = 1_000_000_000
MAX_LENGTH = 400  # characters in a sentence
NEEDS_LATEX = {"pgf"}
SLURM_TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|infinite|unlimited", re.ASCII | re.IGNORECASE)


class BadUsage(ValueError):
    """The command does not accept these arguments. The message says what to give instead."""


class Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line. By default, argparse prints all options first and exits."""

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument (\S+): ", r"\1 ", message)  # show it as you typed it: --ranks 0: give ...
        raise BadUsage(f"{message}; see `{self.prog} --help`")


def one_line(text: str) -> str:
    """Return a sentence on one line, without its middle if it is long: quoted user input can have any length."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= MAX_LENGTH else f"{line[: MAX_LENGTH // 2]} ... {line[-MAX_LENGTH // 2 :]}"


def whole_number(least: int, most: int, description: str = "a whole number") -> Callable[[str], int]:
    """Return an argument type for whole numbers in a range, both ends included."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = None
        if number is None or not least <= number <= most:
            raise _refusal(text, f"give {description} from {least} to {most}")
        return number

    return parse


count = whole_number(1, MAX_COUNT)
seed = whole_number(0, MAX_SEED)
port = whole_number(1, 65_535)


def part(text: str) -> tuple[int, int]:
    """Parse a part of a class, like 3/8."""
    match = re.fullmatch(r"(\d{1,5})/(\d{1,5})", text, re.ASCII)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise _refusal(text, "give the number of a part and how many there are, like 3/8")
    return int(match[1]), int(match[2])


def ranks(text: str) -> int:
    """Parse a number of ranks. `place_of` checks the limit for one machine, once it knows where they run."""
    try:
        return whole_number(1, MAX_COUNT)(text)
    except argparse.ArgumentTypeError:
        raise _refusal(text, f"give a number of ranks from 1 to {MAX_RANKS}, or more on a cluster") from None


def seconds(text: str) -> float:
    """Parse a timeout in seconds; 0 means no timeout."""
    number = _number(text)
    if not 0 <= number <= MAX_TIMEOUT:
        raise _refusal(text, f"give a number of seconds up to {MAX_TIMEOUT}, or 0 to wait forever")
    return number


def patience(text: str) -> float:
    """Parse a timeout for PyTorch, which has no value for "no timeout": 0 becomes the longest one."""
    return seconds(text) or float(MAX_TIMEOUT)


def learning_rate(text: str) -> float:
    """Parse a number above 0."""
    number = _number(text)
    if not 0 < number <= 1000:
        raise _refusal(text, "give a number above 0, and at most 1000")
    return number


def words(text: str) -> str:
    """Parse a string that is not blank."""
    if not text.strip():
        raise _refusal(text, "give a name")
    return text


def option(
    command: argparse.ArgumentParser | argparse._ArgumentGroup,
    name: str,
    description: str,
    kind: Callable[[str], object] = words,
    metavar: str | None = None,
    **more: Any,
) -> None:
    """Add an option, or an argument without dashes. `description` is its help; if `kind` is `bool`, it is a switch."""
    if kind is bool:
        command.add_argument(name, action="store_true", help=description)
    else:
        command.add_argument(name, type=kind, metavar=metavar, help=description, **more)


def sbatch_word(text: str) -> str:
    """Parse one line of text for the Slurm script, where a second line would be a command."""
    if not text.strip() or not text.isprintable():
        raise _refusal(text, "give one line of text")
    return text


def time_limit(text: str) -> float:
    """Parse a time in seconds, or with colons: 90, 1:30 or 0:01:30."""
    if re.fullmatch(r"\d+(:[0-5]\d){1,2}", text, re.ASCII):
        parts = [float(part) for part in text.split(":")]
        number = sum(part * 60**place for place, part in enumerate(reversed(parts)))
    else:
        number = _number(text)
    if not 0 < number <= MAX_TIMEOUT:
        raise _refusal(text, f"give seconds, or hours:minutes:seconds, above 0 and up to {MAX_TIMEOUT} seconds")
    return number


def slurm_time(text: str) -> str:
    """Parse a time in Slurm's format."""
    if not SLURM_TIME.fullmatch(text):
        raise _refusal(text, "give a time as Slurm does: minutes, hours:minutes:seconds or days-hours, like 1:30:00")
    return text


def slurm_memory(text: str) -> str:
    """Parse an amount of memory in Slurm's format."""
    if not re.fullmatch(r"[1-9]\d{0,8}[KMGT]?|0", text, re.ASCII):
        raise _refusal(text, "give megabytes, or a number with G, like 64G; 0 means all of a node's memory")
    return text


def picture(text: str) -> str:
    """Parse the name of a picture file, and check now, not after the run, that we can write it."""
    from matplotlib.backend_bases import FigureCanvasBase

    path = Path(words(text))
    kinds = sorted(set(FigureCanvasBase.get_supported_filetypes()) - NEEDS_LATEX)
    if path.suffix[1:].lower() not in kinds:
        raise _refusal(text, f"end the picture's name in .png, or in one of {', '.join(kinds)}")
    return output_file(text)


def output_file(text: str) -> str:
    """Parse the name of a file that can be written, in an existing folder."""
    path = Path(words(text))
    if os.path.isdir(path):
        raise _refusal(text, "this is a folder; give the name of a file")
    if not os.path.isdir(path.parent):
        raise _refusal(text, f"there is no folder {path.parent}; create it first, or choose another one")
    if not os.access(path if os.path.exists(path) else path.parent, os.W_OK):
        raise _refusal(text, "you have no permission to write there; choose another location")
    return text


def file_ending_in(*endings: str) -> Callable[[str], str]:
    """Return an argument type for names of writable files with one of these endings."""

    def parse(text: str) -> str:
        if not output_file(text).lower().endswith(endings):
            raise _refusal(text, f"give the name of a file that ends in {' or '.join(endings)}")
        return text

    return parse


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _refusal(text: str, advice: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{text.strip() or repr(text)}: {advice}")


HUNG_UP = 129  # the shell's exit status for a program killed by SIGHUP


def complain(error: Exception | str, status: int = 1) -> int:
    """Print what is wrong, on one line unless it is a `LaunchError`, and return the status."""
    message = f"{type(error).__name__}: {error}" if isinstance(error, LaunchError) else one_line(str(error))
    print(f"course: {message}", file=sys.stderr)
    return status


def detached(error: Detached) -> int:
    """Print how to follow a job that keeps running, if there is still a terminal to print to."""
    with contextlib.suppress(OSError):
        complain(str(error))
    return HUNG_UP


def interrupted(more: str = "") -> int:
    """Print that the command was interrupted, and return the exit status."""
    print(f"course: interrupted{more}", file=sys.stderr)
    return 130
