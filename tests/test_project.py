"""The project keeps its own promises: one list of packages, no trace of the machine it was made on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from course_lib.authoring.outline import outlines
from course_lib.checks.catalog import exercises

ROOT = Path(__file__).resolve().parent.parent
CONDA_NAMES = {"pytorch": "torch"}

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")


def files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = [ROOT / name for name in listed.splitlines() if (ROOT / name).is_file()]
    assert Path(__file__) in found
    return found


def test_conda_and_pip_ask_for_the_same_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pip = {r.name: str(r.specifier) for r in map(Requirement, project["dependencies"])}
    conda = {}
    for line in yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]:
        if isinstance(line, str) and line != "pip":
            requirement = Requirement(line)
            conda[CONDA_NAMES.get(requirement.name, requirement.name)] = str(requirement.specifier)
    assert conda.pop("python") == project["requires-python"]
    tests = {r.name: str(r.specifier) for r in map(Requirement, project["optional-dependencies"]["test"])}
    assert conda == pip | {"nbval": tests["nbval"]}  # a class checks its notebooks with it


def test_what_we_test_with_is_something_we_accept():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    accepted = {r.name: r.specifier for r in map(Requirement, project["dependencies"])}
    pins = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1].isalpha()]
    (pin,) = [next(iter(r.specifier)).version for r in pins if r.name == "torch"]
    assert accepted["torch"].contains(pin)


def test_the_torch_version_is_pinned_in_one_place():
    texts = [f for f in files() if f.suffix in {".txt", ".toml", ".yml", ""}]
    pins = [f.name for f in texts if "torch==" in f.read_text(errors="ignore")]
    assert pins == ["constraints.txt"]


def test_no_file_knows_the_machine_it_was_made_on():
    private = re.compile(r"/(home|Users|root|work|tmp/ipykernel)[/_][\w.-]+")
    for file in files():
        if file.suffix in {".py", ".md", ".ipynb", ".yml", ".toml", ".txt"} and file != Path(__file__):
            found = private.search(file.read_text())
            assert not found, f"{file.relative_to(ROOT)} holds {found.group(0)}"


def test_the_readme_is_read_in_a_few_minutes():
    assert len((ROOT / "README.md").read_bytes()) <= 8000


def test_the_readmes_example_runs_as_it_stands():
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    names: dict = {"__name__": "__main__"}
    exec(example, names)
    assert names["run"][2].tolist() == [0.25, 0.25, 0.25, 0.25]


def test_the_readme_counts_minutes_and_exercises_as_the_lessons_do():
    readme = (ROOT / "README.md").read_text()
    stated = dict(re.findall(r"^\| (\d\d) \| \[.*?\]\(notebooks/.*?\| (\d+) \|", readme, re.MULTILINE))
    lessons, tasks = {number: lesson.minutes for number, lesson in outlines().items()}, list(exercises().values())
    assert stated == {number: str(minutes) for number, minutes in lessons.items()}
    hours, more, count = re.search(
        r"About (\d+) hours of lessons, and (\d+) more if you do all (\d+) exercises", readme
    ).groups()
    assert int(hours) == round(sum(lessons.values()) / 60)
    assert int(more) == round(sum(task.minutes for task in tasks) / 60)
    assert int(count) == len(tasks)


def test_the_core_imports_without_jupyter_and_pictures():
    code = (
        "import sys\n"
        "absent = 'IPython ipywidgets matplotlib jupyterlab nbclient nbformat nbval'\n"
        "sys.modules.update(dict.fromkeys(absent.split()))\n"
        "import course_lib\n"
        "late = {name for name in sys.modules if name.startswith('course_lib.') and '.runtime' not in name}\n"
        "assert not late, f'{late}: each name comes when it is used'\n"
        "import course_lib.command, course_lib.command.doctor, course_lib.launcher.jobs.torchrun\n"
        "assert 'torch' not in sys.modules, 'importing course_lib must not wait for torch'\n"
        "import course_lib.train, course_lib.train.tasks\n"
        "late = {f'torch.distributed.{name}' for name in ('tensor', 'fsdp', 'checkpoint')}\n"
        "assert not late & {*sys.modules}, f'{late & {*sys.modules}} takes a second to import, and few runs need it'\n"
        "import course_lib.authoring.__main__, course_lib.authoring.outline\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
