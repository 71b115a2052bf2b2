"""Read a stored lesson as a critical reader does, and report what is missing or wrong, with the cell and the line.

Nothing is run. Only a person can judge whether a cell supports the sentence next to it; these checks find what
that person should not have to look for.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote

from course_lib.runtime.course_files import PACKAGE, Cell, course_folder, read, source

SOURCES = "Where this comes from"  # the heading of the last section
MIN_SOURCES, MAX_SOURCES = 3, 6
NUMBER = re.compile(r"(?<![\w.])-?(?:\d[\d,_]*(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?", re.IGNORECASE)
VERDICT = re.compile(r"(?:^|(?<! is)\W)(?:True|False)[\s\]),.]*$")  # but not in "when it is True"
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
OUR_FILE = re.compile(r"`((?:course_lib|notebooks|exercises|solutions|tests|docs)/[\w./-]+)`")


@dataclass(frozen=True)
class Finding:
    """A fault in a lesson. Cells are counted from 0 and lines from 1; line 0 stands for the whole cell."""

    lesson: str
    cell: int
    line: int
    fault: str

    def __str__(self) -> str:
        return f"{self.lesson}, cell {self.cell}{f', line {self.line}' if self.line else ''}: {self.fault}"


@dataclass(frozen=True)
class Lesson:
    """A lesson as it is stored in its file."""

    path: Path

    @cached_property
    def cells(self) -> list[Cell]:
        return read(self.path)["cells"]

    @property
    def number(self) -> str:
        return self.path.stem[:2]

    def prose(self) -> Iterator[tuple[int, str]]:
        """Yield the index and the text of every Markdown cell, with blank lines in place of code blocks."""
        for place, cell in enumerate(self.cells):
            if cell["cell_type"] == "markdown":
                yield place, re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), source(cell), flags=re.S)

    def code(self) -> Iterator[tuple[int, str]]:
        """Yield the index and the text of every code cell."""
        yield from ((place, source(cell)) for place, cell in enumerate(self.cells) if cell["cell_type"] == "code")

    def sections(self) -> list[tuple[int, str, str]]:
        """Return the index, heading and text of every cell that begins a section."""
        begins = [(place, text.lstrip()) for place, text in self.prose() if text.lstrip().startswith("## ")]
        return [(place, text.splitlines()[0][3:].strip(), text) for place, text in begins]

    def finding(self, cell: int, line: int, fault: str) -> Finding:
        return Finding(self.path.stem, cell, line, fault)


def printed(cell: Cell) -> list[str]:
    """Return the lines that a cell printed or showed as text, without the text versions of pictures and reports."""
    text = ""
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        if output["output_type"] == "stream":
            text += "".join(output["text"])
        elif "text/plain" in data and "text/html" not in data:
            text += "".join(data["text/plain"]) + "\n"
    return [line for line in text.splitlines() if line.strip()]


def strings_in(code: str) -> str:
    """Return the contents of all string literals in the code."""
    try:
        nodes = list(ast.walk(ast.parse(re.sub(r"^\s*[%!].*$", "", code, flags=re.M))))
    except SyntaxError:
        return ""
    return "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def bare_verdicts(lesson: Lesson) -> Iterator[Finding]:
    """Yield a finding for each True or False that is printed without the numbers behind it."""
    for place, code in lesson.code():
        lines = printed(lesson.cells[place])
        if lines and all(VERDICT.search(line) and not measured_numbers(line, code) for line in lines):
            yield lesson.finding(place, 0, "prints only True or False: print the numbers that are compared")
            continue
        for number, line in enumerate(lines, 1):
            if VERDICT.search(line) and not measured_numbers(line, code):
                yield lesson.finding(place, number, f"a verdict without the numbers behind it: {line.strip()!r}")


def measured_numbers(line: str, code: str) -> Counter[str]:
    """Return the numbers in a printed line, except those in a string of the code, such as a tolerance."""
    return Counter(NUMBER.findall(line)) - Counter(NUMBER.findall(strings_in(code)))


def unanswered_predictions(lesson: Lesson) -> Iterator[Finding]:
    """Yield a finding for each question that is not followed by its run and then, in the same section, by prose."""
    codes = dict(lesson.code())
    headings = [place for place, _, _ in lesson.sections()] + [len(lesson.cells)]

    def is_answered(after: int, question: int) -> bool:
        end = min(place for place in headings if place > question)
        return any(after < place < end and text.strip() for place, text in lesson.prose())

    for place, code in codes.items():
        for number in re.findall(r"^predict\(\s*[\"']([\d.]+)[\"']", code, flags=re.M):
            reveals = [p for p, text in codes.items() if re.search(rf"^reveal\(\s*[\"']{number}[\"']", text, re.M)]
            if not [p for p in reveals if p > place]:
                yield lesson.finding(place, 0, f'predict("{number}") is not followed by its reveal')
            elif not is_answered(reveals[-1], place):
                yield lesson.finding(place, 0, f"prediction {number} has no answer in prose after its reveal")
    for place, text in lesson.prose():
        for line, words in enumerate(text.splitlines(), 1):
            if "*Predict*" in words:
                runs = [p for p, code in codes.items() if p > place and not re.match(r"(predict|reveal)\(", code)]
                if not runs or not is_answered(runs[0], place):
                    yield lesson.finding(place, line, "*Predict* without an answer in prose after its run")


def wrong_minutes(lesson: Lesson) -> Iterator[Finding]:
    """Yield a finding if the lesson or a section does not state its minutes, or if they do not add up."""
    stated = re.search(r"\*\*Time\*\*: (\d+) minutes", source(lesson.cells[0]))
    if not stated:
        yield lesson.finding(0, 0, "does not say how long the lesson takes: **Time**: N minutes")
    total = 0
    for place, heading, text in lesson.sections():
        below = next((line for line in text.splitlines()[1:] if line.strip()), "")
        minutes = re.fullmatch(r"<small>(\d+) minutes?</small>", below.strip())
        if minutes:
            total += int(minutes[1])
        else:
            yield lesson.finding(place, 2, f"{heading!r} has no <small>N minutes</small> directly under it")
    if stated and total != int(stated[1]):
        yield lesson.finding(0, 0, f"says {stated[1]} minutes, and its sections add up to {total}")


def missing_neighbors(lesson: Lesson) -> Iterator[Finding]:
    """Yield a finding if the first cell does not link to the previous lesson and to the next one."""
    all_lessons = sorted(path.name for path in lesson.path.parent.glob("[0-9][0-9]_*.ipynb"))
    if lesson.path.name not in all_lessons:
        yield lesson.finding(0, 0, "the name of its file does not begin with the number of the lesson: 03_name.ipynb")
        return
    place = all_lessons.index(lesson.path.name)
    neighbors = {"Before": all_lessons[place - 1] if place else None, "After": (*all_lessons, None)[place + 1]}
    for word, name in neighbors.items():
        link = re.search(rf"\*\*{word}\*\*:\s+\[[^\]]+\]\(([^)]+)\)", source(lesson.cells[0]))
        if name and not link:
            yield lesson.finding(0, 0, f"does not link to the lesson {word.lower()} it: **{word}**: [..]({name})")
        elif name and link and link[1] != name:
            yield lesson.finding(0, 0, f"**{word}** links to {link[1]}, not to {name}")


def missing_sources(lesson: Lesson) -> Iterator[Finding]:
    """Yield a finding if the last section does not list sources, each with a link and a line on what it adds."""
    place, heading, _ = (lesson.sections() or [(0, "", "")])[-1]
    if heading != SOURCES:
        yield lesson.finding(place, 1, f"the last section is {heading!r}, not {SOURCES!r}")
        return
    text = "\n".join(text for p, text in lesson.prose() if p >= place)
    items = re.split(r"^(?:[-*]|\d+\.) ", text, flags=re.M)[1:]
    if not MIN_SOURCES <= len(items) <= MAX_SOURCES:
        yield lesson.finding(place, 0, f"{len(items)} sources: a reader wants {MIN_SOURCES} to {MAX_SOURCES}")
    for item in items:
        links = [address for _, address in LINK.findall(item) if address.startswith("https://")]
        if not links or len(LINK.sub("", item).split()) < 4:
            yield lesson.finding(place, 0, f"a source without a link, or without what it adds: {item.strip()[:60]!r}")


def broken_references(lesson: Lesson) -> Iterator[Finding]:
    """Yield a finding for each link, file name or section number that refers to something that does not exist."""
    for place, text in lesson.prose():
        for line, words in enumerate(text.splitlines(), 1):
            for _, address in LINK.findall(words):
                if not re.match(r"[a-z]+:", address) and not has_target(lesson, address):
                    yield lesson.finding(place, line, f"leads nowhere: {address}")
            for name in OUR_FILE.findall(words):
                if not has_file(lesson, name):
                    yield lesson.finding(place, line, f"there is no {name}")
        for reference in re.finditer(
            r"(?:lesson (\d\d)(?:'s|,|:)?\s+)?[Ss]ections? (\d+)(?:\s+of lesson (\d\d))?", text
        ):
            other = reference[1] or reference[3] or lesson.number
            if not has_section(lesson, other, reference[2]):
                line = text[: reference.start()].count("\n") + 1
                yield lesson.finding(place, line, f"lesson {other} has no section {reference[2]}")


def has_target(lesson: Lesson, address: str) -> bool:
    """Return whether the file that a link points to exists and contains the heading or cell that the link names."""
    name, _, fragment = unquote(address).partition("#")
    path = (lesson.path.parent / name).resolve() if name else lesson.path
    if not path.exists() or not fragment:
        return path.exists()
    if path.suffix == ".ipynb":
        return fragment.removeprefix("cell-id=") in {cell.get("id") for cell in read(path)["cells"]}
    headings = re.findall(r"^#+ (.+?) *$", path.read_text(), flags=re.M)
    return fragment in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def has_file(lesson: Lesson, name: str) -> bool:
    """Return whether any of three course folders has this file: the lesson's, the library's, or the current one."""
    return any((folder / name).exists() for folder in (lesson.path.parent.parent, PACKAGE.parent, course_folder()))


def has_section(lesson: Lesson, number: str, section: str) -> bool:
    """Return whether the lesson with this number, in the same folder, has this section."""
    paths = [lesson.path] if number == lesson.number else lesson.path.parent.glob(f"{number}_*.ipynb")
    return any(heading.startswith(f"{section} ·") for path in paths for _, heading, _ in Lesson(path).sections())


CHECKS: tuple[Callable[[Lesson], Iterator[Finding]], ...] = (
    bare_verdicts,
    unanswered_predictions,
    wrong_minutes,
    missing_neighbors,
    missing_sources,
    broken_references,
)


def findings(path: Path) -> list[Finding]:
    """Return all faults that the checks find in a lesson, from top to bottom."""
    lesson = Lesson(path.resolve())
    return sorted(
        (finding for check in CHECKS for finding in check(lesson)), key=lambda finding: (finding.cell, finding.line)
    )
