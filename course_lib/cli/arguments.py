"""What the arguments of the `course` command may be, and how a command ends that could not do what it was asked.

Either way there is one sentence that says what to do instead, and an exit status.
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
from typing import NoReturn

from course_lib.launchers import Detached, LaunchError
from course_lib.launchers.local import LONGEST_WAIT, MOST_RANKS
from course_lib.machine import LARGEST_SEED

LARGEST_COUNT = 1_000_000_000
LONGEST_LINE = 400  # characters of a sentence
NEEDS_LATEX = {"pgf"}
SLURM_TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|infinite|unlimited", re.ASCII | re.IGNORECASE)


class BadUsage(ValueError):
    """Arguments that the command does not take; the sentence says what to give instead."""


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong. argparse itself prints all options above it, and ends the program."""

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument (\S+): ", r"\1 ", message)  # reads as it was typed: --ranks 0: give ...
        raise BadUsage(f"{message}; see `{self.prog} --help`")


def one_line(text: str) -> str:
    """A sentence on one line, without the middle if it is long: somebody's own words in it may be of any length."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE // 2]} ... {line[-LONGEST_LINE // 2 :]}"


def whole_number(least: int, most: int, what: str = "a whole number") -> Callable[[str], int]:
    """Takes whole numbers in a range, both ends included."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = None
        if number is None or not least <= number <= most:
            raise _refusal(text, f"give {what} from {least} to {most}")
        return number

    return parse


count = whole_number(1, LARGEST_COUNT)
seed = whole_number(0, LARGEST_SEED)
port = whole_number(1, 65_535)


def ranks(text: str) -> int:
    """A number of ranks. Whether they are too many for one machine is known when it is known where they run."""
    try:
        return whole_number(1, LARGEST_COUNT)(text)
    except argparse.ArgumentTypeError:
        raise _refusal(text, f"give a number of ranks from 1 to {MOST_RANKS}, on a cluster also more") from None


def seconds(text: str) -> float:
    """A time to wait, where 0 is for ever."""
    number = _number(text)
    if not 0 <= number <= LONGEST_WAIT:
        raise _refusal(text, f"give a number of seconds up to {LONGEST_WAIT}, or 0 to wait for ever")
    return number


def patience(text: str) -> float:
    """Seconds for PyTorch, which takes 0 by its word and knows no for ever."""
    return seconds(text) or float(LONGEST_WAIT)


def learning_rate(text: str) -> float:
    """A number above 0."""
    number = _number(text)
    if not 0 < number <= 1000:
        raise _refusal(text, "give a number above 0, and at most 1000")
    return number


def words(text: str) -> str:
    """Something, and not nothing."""
    if not text.strip():
        raise _refusal(text, "give a name")
    return text


def sbatch_word(text: str) -> str:
    """A word for a line of the script that Slurm gets: a second line would be a command of its own."""
    if not text.strip() or not text.isprintable():
        raise _refusal(text, "give one line of text")
    return text


def time_limit(text: str) -> float:
    """A time in seconds, or with colons: 90, 1:30 or 0:01:30."""
    if re.fullmatch(r"\d+(:[0-5]\d){1,2}", text, re.ASCII):
        parts = [float(part) for part in text.split(":")]
        number = sum(part * 60**place for place, part in enumerate(reversed(parts)))
    else:
        number = _number(text)
    if not 0 < number <= LONGEST_WAIT:
        raise _refusal(text, f"give seconds, or hours:minutes:seconds, above 0 and up to {LONGEST_WAIT} seconds")
    return number


def slurm_time(text: str) -> str:
    """A time as Slurm writes it."""
    if not SLURM_TIME.fullmatch(text):
        raise _refusal(text, "give a time as Slurm does: minutes, hours:minutes:seconds or days-hours, like 1:30:00")
    return text


def slurm_memory(text: str) -> str:
    """An amount of memory as Slurm writes it."""
    if not re.fullmatch(r"[1-9]\d{0,8}[KMGT]?|0", text, re.ASCII):
        raise _refusal(text, "give megabytes, or a number with G, like 64G; 0 is all that a node has")
    return text


def picture(text: str) -> str:
    """The name of a file that a picture can be written into: better known now than after the run."""
    from matplotlib.backend_bases import FigureCanvasBase

    path = Path(words(text))
    kinds = sorted(set(FigureCanvasBase.get_supported_filetypes()) - NEEDS_LATEX)
    if path.suffix[1:].lower() not in kinds:
        raise _refusal(text, f"end the picture's name in .png, or in one of {', '.join(kinds)}")
    return output_file(text)


def output_file(text: str) -> str:
    """The name of a file that can be written, in a folder that is there."""
    path = Path(words(text))
    if os.path.isdir(path):
        raise _refusal(text, "this is a folder; give the name of a file")
    if not os.path.isdir(path.parent):
        raise _refusal(text, f"there is no folder {path.parent}; make it first, or write elsewhere")
    if not os.access(path if os.path.exists(path) else path.parent, os.W_OK):
        raise _refusal(text, "you may not write there; write elsewhere")
    return text


def file_ending_in(*endings: str) -> Callable[[str], str]:
    """Takes the name of a file that can be written, with one of these endings: it says what is in the file."""

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


HUNG_UP = 129  # as a shell has it for a program that a hang-up has ended


def complain(error: Exception | str, status: int = 1) -> int:
    """Say what is wrong: in one line, but for what somebody's own function or file has raised."""
    told = f"{type(error).__name__}: {error}" if isinstance(error, LaunchError) else one_line(str(error))
    print(f"course: {told}", file=sys.stderr)
    return status


def detached(error: Detached) -> int:
    """Say how to look at a job that goes on; where it is said to nobody, the job's own output says so, too."""
    with contextlib.suppress(OSError):
        complain(str(error))
    return HUNG_UP


def interrupted(more: str = "") -> int:
    """Say so."""
    print(f"course: interrupted{more}", file=sys.stderr)
    return 130
