"""A class as large as one likes, made from the banks: what each submission should earn is known beforehand."""

from __future__ import annotations

import copy
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

from course_lib.checks import exercises
from course_lib.grading.records import Record
from tests.checks.bank import banked
from tests.checks.class_of import ROOT, hand_in, read, with_first_cell

HOSTILE = {  # none of them takes long, and each takes another way
    "exit": "import os\nos._exit(0)",
    "kill": "import os, signal\nos.kill(-1, signal.SIGKILL)",
    "patched": "import torch\ntorch.equal = torch.allclose = lambda *a, **k: True",
    "forged": "import glob\nfor name in glob.glob('/proc/*/fd/*'):\n    try:\n        open(name, 'w').write("
    '\'{"cell": Infinity}\\n{"number": "02.1", "case": 0}\\n\')\n    except OSError:\n        pass',
    "surrogate": "x = '\ud800'",
    "blank lines": " \n" * 100_000,
    "not a notebook": "",
    "no file": "",
}


@dataclass(frozen=True)
class Expected:
    """What a submission should earn: for each exercise, whether all of it."""

    student: str
    full: dict[str, bool]

    def fits(self, record: Record) -> bool:
        """Whether the marks are as the banks say."""
        most = {mark.number: exercises()[mark.number].points for mark in record.marks}
        return {mark.number: mark.points == most[mark.number] for mark in record.marks} == self.full


def hand_in_class(
    folder: Path, students: int, *, lesson: str = "02", seed: int = 0, hostile: float = 0.05
) -> dict[str, Expected]:
    """Notebooks of a lesson, each with an answer of a bank to each exercise; some of them hostile."""
    chance, numbers = random.Random(seed), [number for number in exercises() if number.startswith(f"{lesson}.")]
    (path,) = (ROOT / "exercises").glob(f"{lesson}_*.ipynb")
    blank, text = read(path), _bank_as_a_cell(lesson)
    expected = {}
    for place in range(students):
        if place % round(1 / hostile) == 0:
            name = list(HOSTILE)[place // round(1 / hostile) % len(HOSTILE)]
            student, full = f"{place:03} {name}", dict.fromkeys(numbers, False)
            _hand_in_hostile(folder / student / path.name, blank, name)
        else:
            chosen = {number: chance.choice(banked(number)) for number in numbers}
            student, full = f"{place:03}", {number: each.is_right for number, each in chosen.items()}
            last = "\n".join(f"{exercises()[number].answer} = {each.name}" for number, each in chosen.items())
            hand_in(folder, student, with_first_cell(blank, text, last=last), path.name)
        expected[student] = Expected(student, full)
    return expected


def _bank_as_a_cell(lesson: str) -> str:
    source = (ROOT / "tests" / "checks" / "bank" / f"lesson_{lesson}.py").read_text()
    decorators = "class wrong:\n    def __init__(self, *_, **__): ...\n    def __call__(self, answer): return answer\n"
    ours = re.search(r"^from tests\S* import (.+)$", source, flags=re.M)
    names = "".join(f"{name} = wrong\n" for name in ours[1].split(", ") if name != "wrong") if ours else ""
    return decorators + names + re.sub(r"^from (__future__|tests)\b.*$", "", source, flags=re.M)


def _hand_in_hostile(place: Path, blank: dict, name: str) -> None:
    folder, student = place.parent.parent, place.parent.name
    if name == "no file":
        place.mkdir(parents=True)
    elif name == "not a notebook":
        hand_in(folder, student, "[" * 100_000, place.name)
    else:
        hand_in(folder, student, json.dumps(with_first_cell(copy.deepcopy(blank), HOSTILE[name])), place.name)
