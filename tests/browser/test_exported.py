"""A lesson as GitHub, nbviewer and nbconvert show it, without a kernel: everything there is to see is in the file."""

from __future__ import annotations

import nbformat
import pytest

from tests.browser.lab import ROOT, axe, picture

pytestmark = pytest.mark.slow

LESSONS = sorted(f"notebooks/{path.stem}" for path in (ROOT / "notebooks").glob("*.ipynb"))
PICTURES = "all => all.map(one => [one.alt, one.complete && one.naturalWidth > 0 && one.clientWidth > 0])"


IN_THE_DARK = ("notebooks/00_start_here", "notebooks/06_pipeline_parallelism")


@pytest.fixture
def exported(chromium, tmp_path):
    """Opens the HTML of a lesson. Nothing is fetched from elsewhere."""
    from nbconvert import HTMLExporter

    context = chromium.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    page.route("http*://**", lambda route: route.abort())

    def opened(name: str, theme: str = "light"):
        notebook = nbformat.read(ROOT / f"{name}.ipynb", as_version=4)
        html, _ = HTMLExporter(theme=theme).from_notebook_node(notebook)
        file = tmp_path / "exported.html"
        file.write_text(html)
        page.goto(file.as_uri())
        page.screenshot(path=picture(f"exported_{name.replace('/', '_')}_{theme}"), full_page=True)
        return page

    yield opened
    context.close()


def test_reports_are_boxes_without_the_points_below_them(exported):
    page = exported("solutions/02_ddp")
    reports = page.get_by_role("group", name="Report on exercise")
    assert reports.count() == 4
    assert all("passed" in one.inner_text() for one in reports.all())
    assert axe(page, ".jp-OutputArea-output") == []


@pytest.mark.parametrize(
    ("name", "theme"), [*((name, "light") for name in LESSONS), *((name, "dark") for name in IN_THE_DARK)]
)
def test_all_pictures_and_boxes_are_there_for_everybody(exported, name, theme):
    page = exported(name, theme)
    pictures = page.locator(".jp-OutputArea-output img").evaluate_all(PICTURES)
    assert pictures
    assert [alt for alt, shown in pictures if not shown or len(alt) < 20] == []
    boxes = page.locator(".course-box")
    assert boxes.count() > 5
    assert all(box.is_visible() for box in boxes.all())
    assert "Error displaying" not in page.locator("body").inner_text()
    assert axe(page, ".jp-OutputArea-output:not(:has([class^=ansi]))") == []  # a traceback's colors are IPython's
