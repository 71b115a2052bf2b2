"""Grade a class in parts, on any number of machines, and merge the parts.

A part is a fixed set of students, chosen by a hash of their names: it does not depend on who else has handed in, on the
machine, or on the order in which parts run. Each part leaves one file of records, and merging runs no submission.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from course_lib.grading.records import Record
from course_lib.grading.submissions import BadSubmissions
from course_lib.runtime.course_files import write_whole

FOLDER = "parts"


@dataclass(frozen=True)
class Part:
    """The `number`-th of `of` parts, counted from 1."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def has(self, student: str) -> bool:
        """Whether this student belongs to the part."""
        return part_of(student, self.of) == self.number

    def file(self, out: Path) -> Path:
        return out / FOLDER / f"{self.number}-of-{self.of}.json"


def part_of(student: str, parts: int) -> int:
    """Return the number of the part that a student belongs to."""
    digest = hashlib.sha256(student.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % parts + 1


def write_part(out: Path, part: Part, checks: str, records: list[Record]) -> None:
    """Write all records of a part to one file. `checks` identifies the secret and the checks that decided the marks."""
    content = {"part": part.number, "of": part.of, "checks": checks, "records": [asdict(record) for record in records]}
    write_whole(part.file(out), json.dumps(content, indent=1), mode=0o600)


def read_parts(out: Path, checks: str) -> dict[tuple[str, str], Record]:
    """Return the records of all parts by student and notebook. Raises `BadSubmissions` if they do not match."""
    files = sorted((out / FOLDER).glob("*-of-*.json"))
    if not files:
        raise BadSubmissions(f"there are no parts in {out / FOLDER}: grade them first, with --part 1/8 to --part 8/8")
    read = {file: _read(file) for file in files}
    counts = sorted({part.of for part, _, _ in read.values()})
    if len(counts) > 1:
        told = ", ".join(map(str, counts))
        raise BadSubmissions(f"{out / FOLDER} mixes divisions into {told} parts: keep only the files of one of them")
    missing = sorted(set(range(1, counts[0] + 1)) - {part.number for part, _, _ in read.values()})
    if missing:
        raise BadSubmissions(f"part {Part(missing[0], counts[0])} is missing: grade it with --part, then merge again")
    found: dict[tuple[str, str], Record] = {}
    for file, (part, theirs, records) in read.items():
        if theirs != checks:
            raise BadSubmissions(
                f"{file} was graded with a different seed, or with a different version of the checks: run --part "
                f"{part} again with this one"
            )
        found |= {(record.student, record.notebook): record for record in records}
    return found


def _read(file: Path) -> tuple[Part, str, list[Record]]:
    try:
        content = json.loads(file.read_text())
        part = Part(int(content["part"]), int(content["of"]))
        if file.name != part.file(Path()).name or not 1 <= part.number <= part.of:
            raise ValueError("another part's file")
        records = [Record.of_fields(fields) for fields in content["records"]]
        if not all(record.is_possible() and part.has(record.student) for record in records):
            raise ValueError("no records of this part")
        return part, str(content["checks"]), records
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadSubmissions(f"{file} is damaged ({error}): grade this part again, with --part") from error
