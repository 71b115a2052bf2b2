"""Pages made of the repository's files: where links lead, with and without an address on the web; what is not shown."""

from __future__ import annotations

import importlib
import json
import re
import sys
from html import unescape
from pathlib import Path

import pytest

from course_lib.runtime.course_files import read, source

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "docs" / "_extensions"))

links = pytest.importorskip("links")
repository = pytest.importorskip("repository")
ADDRESS = "https://github.com/ada/course"


def rewritten(text: str, file: str) -> str:
    return links.with_page_links(text, file, repository.pages(), lambda path: f"files/{path}")


@pytest.fixture
def on_the_web(monkeypatch):
    monkeypatch.setenv(repository.SETTING, ADDRESS + "/")


@pytest.fixture
def nowhere(monkeypatch):
    monkeypatch.delenv(repository.SETTING, raising=False)


def test_a_link_between_lessons_leads_to_the_lessons_page():
    assert rewritten("[a](../notebooks/02_ddp.ipynb#x)", "exercises/03_padding_and_masking.ipynb") == (
        "[a](../lessons/02_ddp.ipynb#x)"
    )
    assert rewritten("[a](course_lib/launcher)", "README.md") == "[a](api/launcher.md)"


def test_a_file_that_is_no_page_is_linked_where_the_repository_is(on_the_web):
    assert (
        rewritten("[a](Dockerfile)", "docs/deploy/containers.md") == f"[a]({ADDRESS}/blob/main/docs/deploy/Dockerfile)"
    )
    assert rewritten("[a](../../tests/deploy)", "docs/deploy/containers.md") == f"[a]({ADDRESS}/tree/main/tests/deploy)"


def test_without_an_address_a_file_comes_along_and_a_folder_is_only_named(nowhere):
    assert rewritten("[a](Dockerfile)", "docs/deploy/containers.md") == "[a](../files/docs/deploy/Dockerfile)"
    assert rewritten("[a](../../tests/deploy)", "docs/deploy/containers.md") == "a"


def test_code_and_links_to_elsewhere_stay_as_they_are(on_the_web):
    for text in ("```\n[a](Dockerfile)\n```\n", "[a](https://arxiv.org/abs/2405.04517)", "`model[0](inputs)`"):
        assert rewritten(text, "docs/deploy/containers.md") == text


def test_buttons_that_need_an_address_are_there_once_it_is_known(on_the_web, monkeypatch):
    lesson = "notebooks/02_ddp.ipynb"
    assert repository.binder_address(lesson) == f"https://mybinder.org/v2/gh/ada/course/main?urlpath=lab/tree/{lesson}"
    monkeypatch.setenv(repository.SETTING, "https://git.example.org/course")
    assert repository.binder_address(lesson) == ""
    monkeypatch.delenv(repository.SETTING)
    assert repository.source_address(lesson) == ""


def test_the_reference_links_a_name_to_its_lines_where_the_repository_is(on_the_web, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    conf, home = importlib.import_module("conf"), importlib.import_module("course_lib.lab.home")
    found = conf.linkcode_resolve("py", {"module": home.__name__, "fullname": "Step.shown"})
    assert re.fullmatch(rf"{ADDRESS}/blob/main/course_lib/lab/home\.py#L\d+-L\d+", found)
    monkeypatch.delenv(repository.SETTING)
    assert conf.linkcode_resolve("py", {"module": home.__name__, "fullname": "Step.shown"}) is None


def answers(name: str) -> set[str]:
    """The lines that only our solutions have, without their spaces."""
    asked = json.dumps([source(cell) for cell in read(ROOT / "exercises" / name)["cells"]])
    cells = [cell for cell in read(ROOT / "solutions" / name)["cells"] if cell["cell_type"] == "code"]
    lines = {line.strip() for cell in cells for line in source(cell).splitlines()}
    return {line for line in lines if len(line) > 30 and json.dumps(line)[1:-1] not in asked}


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.name for path in sorted((ROOT / "exercises").glob("*.ipynb"))])
def test_an_exercises_page_has_no_line_of_its_solution(name, site_folder):
    page = (site_folder / "exercises" / name).with_suffix(".html").read_text()
    shown = unescape(re.sub(r"<[^>]*>", "", page))
    assert answers(name)
    assert [line for line in answers(name) if line in shown] == []
