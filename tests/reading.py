"""Read lessons as a demanding reader does, and say what is wrong where: `python -m tests.reading notebooks/03*.ipynb`.

It reads what is stored, and runs nothing. That a sentence is borne out by its cell takes a person; what it finds is
what such a person should not have to look for.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote

from course_lib.course_files import Cell, read, source

ROOT = Path(__file__).resolve().parent.parent
HELD = ("00", "01", "02", "03", "04", "05", "06", "07", "08", "09", "10")

SOURCES = "Where this comes from"  # the last section
FEWEST_SOURCES, MOST_SOURCES = 3, 6
NUMBER = re.compile(r"(?<![\w.])-?(?:\d[\d,_]*(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?", re.IGNORECASE)
VERDICT = re.compile(r"(?:^|(?<! is)\W)(?:True|False)[\s\]),.]*$")  # but not a sentence like "when it is True"
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
OUR_FILE = re.compile(r"`((?:course_lib|notebooks|exercises|solutions|tests|docs)/[\w./-]+)`")


@dataclass(frozen=True)
class Finding:
    """Something a reader can catch: in which lesson, cell (counted from 0) and line (from 1, 0: in all of it)."""

    lesson: str
    cell: int
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.lesson}, cell {self.cell}{f', line {self.line}' if self.line else ''}: {self.what}"


@dataclass(frozen=True)
class Lesson:
    """A lesson as it is stored."""

    path: Path

    @cached_property
    def cells(self) -> list[Cell]:
        return read(self.path)["cells"]

    @property
    def number(self) -> str:
        return self.path.stem[:2]

    def prose(self) -> Iterator[tuple[int, str]]:
        """Place and text of every markdown cell; what stands in it as code is left blank."""
        for place, cell in enumerate(self.cells):
            if cell["cell_type"] == "markdown":
                yield place, re.sub(r"```.*?```", lambda found: "\n" * found[0].count("\n"), source(cell), flags=re.S)

    def code(self) -> Iterator[tuple[int, str]]:
        """Place and text of every code cell."""
        yield from ((place, source(cell)) for place, cell in enumerate(self.cells) if cell["cell_type"] == "code")

    def sections(self) -> list[tuple[int, str, str]]:
        """Place, heading and text of every cell that begins a section."""
        begins = [(place, text.lstrip()) for place, text in self.prose() if text.lstrip().startswith("## ")]
        return [(place, text.splitlines()[0][3:].strip(), text) for place, text in begins]

    def finding(self, cell: int, line: int, what: str) -> Finding:
        return Finding(self.path.stem, cell, line, what)


def printed(cell: Cell) -> list[str]:
    """The lines that a cell has printed, or shown as text; not what drawings and reports say beside themselves."""
    text = ""
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        if output["output_type"] == "stream":
            text += "".join(output["text"])
        elif "text/plain" in data and "text/html" not in data:
            text += "".join(data["text/plain"]) + "\n"
    return [line for line in text.splitlines() if line.strip()]


def words_of(code: str) -> str:
    """All that stands in quotes in this code."""
    try:
        nodes = list(ast.walk(ast.parse(re.sub(r"^\s*[%!].*$", "", code, flags=re.M))))
    except SyntaxError:
        return ""
    return "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def says_verdicts(lesson: Lesson) -> Iterator[Finding]:
    """A verdict where a number belongs. A number that the cell's own words hold, like a tolerance, was not measured."""
    for place, code in lesson.code():
        lines = printed(lesson.cells[place])
        if lines and all(VERDICT.search(line) and not numbers_beside(line, code) for line in lines):
            yield lesson.finding(place, 0, "prints only True or False: print the numbers that are compared")
            continue
        for number, line in enumerate(lines, 1):
            if VERDICT.search(line) and not numbers_beside(line, code):
                yield lesson.finding(place, number, f"a verdict without the numbers it is about: {line.strip()!r}")


def numbers_beside(line: str, code: str) -> Counter[str]:
    """The numbers in a printed line that are not from the words in the cell that printed it."""
    return Counter(NUMBER.findall(line)) - Counter(NUMBER.findall(words_of(code)))


def leaves_predictions_open(lesson: Lesson) -> Iterator[Finding]:
    """A question that nobody answers: after its run there must be prose, in the same section."""
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


def miscounts_minutes(lesson: Lesson) -> Iterator[Finding]:
    """Sections say how long they take, and all together take what the lesson says."""
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


def hides_its_neighbours(lesson: Lesson) -> Iterator[Finding]:
    """The first cell links the lesson before and the one after."""
    all_lessons = sorted(path.name for path in lesson.path.parent.glob("[0-9][0-9]_*.ipynb"))
    place = all_lessons.index(lesson.path.name)
    neighbours = {"Before": all_lessons[place - 1] if place else None, "After": (*all_lessons, None)[place + 1]}
    for word, name in neighbours.items():
        found = re.search(rf"\*\*{word}\*\*:\s+\[[^\]]+\]\(([^)]+)\)", source(lesson.cells[0]))
        if name and not found:
            yield lesson.finding(0, 0, f"does not link the lesson {word.lower()}: **{word}**: [..]({name})")
        elif name and found and found[1] != name:
            yield lesson.finding(0, 0, f"**{word}** links {found[1]} and not {name}")


def lacks_sources(lesson: Lesson) -> Iterator[Finding]:
    """The last section names what to read next: each by a link, and with a line on what it adds."""
    place, heading, _ = (lesson.sections() or [(0, "", "")])[-1]
    if heading != SOURCES:
        yield lesson.finding(place, 1, f"the last section is {heading!r} and not {SOURCES!r}")
        return
    text = "\n".join(text for p, text in lesson.prose() if p >= place)
    items = re.split(r"^(?:[-*]|\d+\.) ", text, flags=re.M)[1:]
    if not FEWEST_SOURCES <= len(items) <= MOST_SOURCES:
        yield lesson.finding(place, 0, f"{len(items)} sources: a reader wants {FEWEST_SOURCES} to {MOST_SOURCES}")
    for item in items:
        links = [address for _, address in LINK.findall(item) if address.startswith("https://")]
        if not links or len(LINK.sub("", item).split()) < 4:
            yield lesson.finding(place, 0, f"a source without a link, or without what it adds: {item.strip()[:60]!r}")


def misleads(lesson: Lesson) -> Iterator[Finding]:
    """Links, names of files and numbers of sections lead to something that is there."""
    for place, text in lesson.prose():
        for line, words in enumerate(text.splitlines(), 1):
            for _, address in LINK.findall(words):
                if not re.match(r"[a-z]+:", address) and not leads_somewhere(lesson, address):
                    yield lesson.finding(place, line, f"leads nowhere: {address}")
            for name in OUR_FILE.findall(words):
                if not (ROOT / name).exists():
                    yield lesson.finding(place, line, f"there is no {name}")
        for found in re.finditer(r"(?:lesson (\d\d)(?:'s|,|:)?\s+)?[Ss]ections? (\d+)(?:\s+of lesson (\d\d))?", text):
            other = found[1] or found[3] or lesson.number
            if not has_section(lesson, other, found[2]):
                line = text[: found.start()].count("\n") + 1
                yield lesson.finding(place, line, f"lesson {other} has no section {found[2]}")


def leads_somewhere(lesson: Lesson, address: str) -> bool:
    """Whether a link from this lesson finds its file, and in it the heading or the cell."""
    name, _, fragment = unquote(address).partition("#")
    path = (lesson.path.parent / name).resolve() if name else lesson.path
    if not path.exists() or not fragment:
        return path.exists()
    if path.suffix == ".ipynb":
        return fragment.removeprefix("cell-id=") in {cell.get("id") for cell in read(path)["cells"]}
    headings = re.findall(r"^#+ (.+?) *$", path.read_text(), flags=re.M)
    return fragment in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def has_section(lesson: Lesson, number: str, section: str) -> bool:
    """Whether a lesson, this one or another, has a section with this number."""
    paths = [lesson.path] if number == lesson.number else lesson.path.parent.glob(f"{number}_*.ipynb")
    return any(heading.startswith(f"{section} ·") for path in paths for _, heading, _ in Lesson(path).sections())


CHECKS: tuple[Callable[[Lesson], Iterator[Finding]], ...] = (
    says_verdicts,
    leaves_predictions_open,
    miscounts_minutes,
    hides_its_neighbours,
    lacks_sources,
    misleads,
)


def findings(path: Path) -> list[Finding]:
    """What a reader can catch in this lesson, from top to bottom."""
    lesson = Lesson(path.resolve())
    return sorted((found for check in CHECKS for found in check(lesson)), key=lambda found: (found.cell, found.line))


if __name__ == "__main__":
    found = [finding for name in sys.argv[1:] for finding in findings(Path(name))]
    print(*found, sep="\n")
    sys.exit(bool(found))
