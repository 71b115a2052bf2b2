"""The types of the `course` command's arguments, and how a command ends when it cannot do what you asked.

The command then prints one sentence that says what to do instead, and returns an exit status.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from course_lib.launcher.hangs.errors import Detached, LaunchError
from course_lib.launcher.notebook.launch import MAX_RANKS, MAX_TIMEOUT
from course_lib.runtime.machine import MAX_SEED
from course_lib.train.settings import MAX_COUNT

MAX_LENGTH = 400  # characters in a sentence
HUNG_UP = 129  # the shell's exit status for a program killed by SIGHUP


class BadUsage(ValueError):
    """The command does not accept these arguments. The message says what to give instead."""


class Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line. By default, argparse prints all options first and exits."""

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument (\S+): ", r"\1 ", message)  # show it as you typed it: --ranks 0: give ...
        raise BadUsage(f"{message}; see `{self.prog} --help`")


def option(
    command: argparse.ArgumentParser | argparse._ArgumentGroup,
    name: str,
    description: str,
    kind: Callable[[str], object] | None = None,
    metavar: str | None = None,
    **more: Any,
) -> None:
    """Add an option, or an argument without dashes. `description` is its help; if `kind` is `bool`, it is a switch."""
    if kind is bool:
        command.add_argument(name, action="store_true", help=description)
    else:
        command.add_argument(name, type=kind or words, metavar=metavar, help=description, **more)


def refusal(text: str, advice: str) -> argparse.ArgumentTypeError:
    """Return the error for an argument: what you gave, and what to give instead."""
    return argparse.ArgumentTypeError(f"{text.strip() or repr(text)}: {advice}")


def number(least: float, most: float, advice: str = "", kind: Callable[[str], float] = int) -> Callable[[str], Any]:
    """Return an argument type for numbers in a range, both ends included."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            name = "a whole number" if kind is int else "a number"
            raise refusal(text, advice or f"give {name} from {least} to {most}")
        return value

    return parse


def text_that(is_good: Callable[[str], object], advice: str) -> Callable[[str], str]:
    """Return an argument type for text that passes a test."""

    def parse(text: str) -> str:
        if not is_good(text):
            raise refusal(text, advice)
        return text

    return parse


count = number(1, MAX_COUNT)
seed = number(0, MAX_SEED)
port = number(1, 65_535)
ranks = number(1, MAX_COUNT, f"give a number of ranks from 1 to {MAX_RANKS}, or more on a cluster")  # see `place_of`
seconds = number(0, MAX_TIMEOUT, f"give a number of seconds up to {MAX_TIMEOUT}, or 0 to wait forever", float)
words = text_that(str.strip, "give a name")
sbatch_word = text_that(lambda text: text.strip() and text.isprintable(), "give one line of text")  # 2: a command
slurm_time = text_that(
    re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|infinite|unlimited", re.ASCII | re.IGNORECASE).fullmatch,
    "give a time as Slurm does: minutes, hours:minutes:seconds or days-hours, like 1:30:00",
)
slurm_memory = text_that(
    re.compile(r"[1-9]\d{0,8}[KMGT]?|0", re.ASCII).fullmatch,
    "give megabytes, or a number with G, like 64G; 0 means all of a node's memory",
)


def patience(text: str) -> float:
    """Parse a timeout for PyTorch, which has no value for "no timeout": 0 becomes the longest one."""
    return seconds(text) or float(MAX_TIMEOUT)


def time_limit(text: str) -> float:
    """Parse a time in seconds, or with colons: 90, 1:30 or 0:01:30."""
    if re.fullmatch(r"\d+(:[0-5]\d){1,2}", text, re.ASCII):
        parts = [float(part) for part in text.split(":")]
        text = str(sum(part * 60**place for place, part in enumerate(reversed(parts))))
    advice = f"give seconds, or hours:minutes:seconds, above 0 and up to {MAX_TIMEOUT} seconds"
    return number(1e-6, MAX_TIMEOUT, advice, float)(text)


def part(text: str) -> tuple[int, int]:
    """Parse a part of a class, like 3/8."""
    match = re.fullmatch(r"(\d{1,5})/(\d{1,5})", text, re.ASCII)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise refusal(text, "give the number of a part and how many there are, like 3/8")
    return int(match[1]), int(match[2])


def output_file(text: str) -> str:
    """Parse the name of a file that can be written, in an existing folder."""
    path = Path(words(text))
    if os.path.isdir(path):
        raise refusal(text, "this is a folder; give the name of a file")
    if not os.path.isdir(path.parent):
        raise refusal(text, f"there is no folder {path.parent}; create it first, or choose another one")
    if not os.access(path if os.path.exists(path) else path.parent, os.W_OK):
        raise refusal(text, "you have no permission to write there; choose another location")
    return text


def file_ending_in(*endings: str) -> Callable[[str], str]:
    """Return an argument type for names of writable files with one of these endings."""
    advice = f"give the name of a file that ends in {' or '.join(endings)}"
    return lambda text: output_file(text_that(lambda name: name.lower().endswith(endings), advice)(text))


picture = file_ending_in(".png", ".svg", ".pdf", ".jpg")


def status_of(error: Exception) -> int:
    """Return 2 for something that you can give better, and 1 for everything else."""
    return 2 if isinstance(error, ValueError) else 1


def complain(error: Exception | str, status: int = 1) -> int:
    """Print what is wrong, on one line unless it is a `LaunchError`, and return the status."""
    named = isinstance(error, LaunchError) and not isinstance(error, Detached)
    message = f"{type(error).__name__}: {error}" if named else one_line(str(error))
    try:
        print(f"course: {message}", file=sys.stderr)
    except OSError:
        if not isinstance(error, Detached):  # its terminal may be gone
            raise
    return HUNG_UP if isinstance(error, Detached) else status


def one_line(text: str) -> str:
    """Return a sentence on one line, without its middle if it is long: quoted user input can have any length."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= MAX_LENGTH else f"{line[: MAX_LENGTH // 2]} ... {line[-MAX_LENGTH // 2 :]}"
