"""The `course` command, also available as `python -m course_lib`."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from course_lib.command import desk, grading, teaching, training
from course_lib.command.arguments import Parser, complain, status_of
from course_lib.launcher.jobs.torchrun import leave


def command() -> NoReturn:
    """Run the command line, and exit."""
    status = main()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = status or 1
    except OSError as error:
        status = complain(f"the output is incomplete: {error.strerror}")
    leave(status)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit status.

    The status is 0 on success, 1 on failure, 2 for bad arguments, 75 for a stopped job that can be resumed, and 130
    after Ctrl-C. The library's own errors are sentences for you; any other error is a bug, and raised.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # we print file names, which may contain any bytes
    try:
        os.getcwd()
    except FileNotFoundError:
        return complain("the current folder no longer exists; change to another one with cd")
    try:
        options = parse(list(sys.argv[1:] if arguments is None else arguments))
        return options.run(options)
    except KeyboardInterrupt:
        return complain("interrupted", status=130)
    except BrokenPipeError:  # `course progress | head -1`: discard the remaining output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return complain(f"{error.filename}: {error.strerror}" if error.filename is not None else error)
    except MemoryError:
        return complain("there is not enough memory for that; give smaller numbers, or use a larger machine")
    except Exception as error:
        if not type(error).__module__.startswith("course_lib."):
            raise
        return complain(error, status_of(error))


def parse(words: list[str]) -> argparse.Namespace:
    """Return the options of a command; `words` are those before `--`, and `argv` those after it."""
    has_separator = "--" in words
    end = words.index("--") if has_separator else len(words)
    words, function_arguments = words[:end], words[end + 1 :]
    parser = make_parser()
    if has_separator and words[:1] != ["run"]:
        parser.error("only `course run` takes arguments after --, for the function that it runs")
    for word in words:
        if word.startswith("--") and word.endswith("=--"):  # argparse would read it as an empty list
            parser.error(f"{word}: give a value")
    options, extra_words = parser.parse_known_args(words)
    # argparse does not accept positional arguments after an option: `course run f.py:g --ranks 2 steps=10`
    if any(word.startswith("-") for word in extra_words) or (extra_words and not hasattr(options, "arguments")):
        parser.error(f"unrecognized arguments: {' '.join(extra_words)}")
    if extra_words:
        options.arguments = [*options.arguments, *extra_words]
    options.argv, options.words = function_arguments, words
    return options


def make_parser() -> Parser:
    """Return the parser with all commands and their options."""
    parser = Parser(prog="course", description="Train an LSTM on many GPUs: the course's commands.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for group in (desk, training, grading, teaching):
        group.add_commands(commands)
    return parser


if __name__ == "__main__":
    command()
