"""A lesson presented live, in JupyterLab with jupyterlab-deck: cells run on their slides, and predictions answer."""

from __future__ import annotations

import pytest

from tests.browser.lab import NOTEBOOK, wait

pytestmark = pytest.mark.slow  # test_slides.py has the same marks on another wall

ON_THE_WALL = f"{NOTEBOOK} .jp-Cell.jp-deck-mod-visible"


def wall(page) -> str:
    """What the class sees."""
    return "\n".join(page.browser.locator(ON_THE_WALL).all_inner_texts())


def test_a_lesson_is_presented_and_its_cells_run(page):
    page.open("notebooks/00_start_here.ipynb")
    page.run(page.code_cell("import torch.distributed as dist"))
    page.browser.set_viewport_size({"width": 853, "height": 480})  # 1280 x 720, enlarged to 150%
    page.browser.locator(f"{NOTEBOOK} [title='Toggle Deck']").click()
    wait(lambda: "1 · A rank" in wall(page))
    page.browser.keyboard.press("ArrowDown")
    wait(lambda: "who_am_i" in wall(page))
    assert "rank 2 of 4" not in wall(page)
    page.browser.keyboard.press("Control+Enter")
    wait(lambda: "rank 2 of 4" in wall(page))
    page.screenshot("deck_run")
    page.browser.keyboard.press("ArrowDown")
    wait(lambda: "Are they really separate processes" in wall(page))
    page.browser.keyboard.press("ArrowDown")
    wait(lambda: 'predict("00.1")' in wall(page))
    page.browser.keyboard.press("Control+Enter")
    answer = page.browser.locator(f"{ON_THE_WALL} .jupyter-widgets").first
    answer.wait_for()
    page.screenshot("deck_asks")
    assert "106: each rank has added its number" in wall(page)
