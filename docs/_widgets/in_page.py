"""Explorers in a page of the website: this runs in the reader's browser, in Python that the page has loaded.

It knows neither torch nor numpy nor Jupyter: only the standard library, and the modules of the course that are imported
here, directly or not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from course_lib.data_parallel.scaling_widget import explore_scaling
from course_lib.drawing.explorer import View
from course_lib.messages.all_reduce_widget import explore_all_reduce
from course_lib.one_device.memory_widget import explore_memory
from course_lib.pipeline.bench_widget import schedule_bench
from course_lib.pipeline.schedule_picture import explore_schedules
from course_lib.sharding.meshes_widget import explore_meshes

EXPLORERS: dict[str, Callable[..., Any]] = {
    "explore_all_reduce": explore_all_reduce,
    "explore_memory": explore_memory,
    "explore_meshes": explore_meshes,
    "explore_scaling": explore_scaling,
    "explore_schedules": explore_schedules,
    "schedule_bench": schedule_bench,
}


class PageView(View):
    """A view that tells the page in JSON which widget the news are of."""

    def __init__(self, number: int, explorer: Any, post: Callable[[str], None]) -> None:
        super().__init__(explorer, lambda news: post(json.dumps({"widget": number, "news": news})), ranks=False)
        explorer.view = self

    def facts(self) -> dict[str, Any]:
        """Those of the explorer, and which of its buttons are missing."""
        facts = super().facts()
        left_out = [button for button in self.explorer.buttons if button not in self.buttons]
        names = " and ".join(f"“{button.label}”" for button in left_out)
        if names:
            facts["help"] = f"{facts['help']} In the lesson itself, on your machine, there is also {names}.".strip()
        return facts

    def show(self) -> None:
        """Tell what the explorer has drawn."""
        self.tell(self.state())


class Page:
    """All widgets of a page, by number. `receive` takes what the page says, and `post` what it is told: JSON."""

    def __init__(self, post: Callable[[str], None]) -> None:
        self.post = post
        self.views: dict[int, PageView] = {}

    def receive(self, text: str) -> None:
        """Do what a message asks for; what goes wrong is said in the widget."""
        message = json.loads(text)
        number = message["widget"]
        try:
            self._do(number, message)
        except Exception as error:
            self._answer(number, {"said": f"{type(error).__name__}: {error}"})
        self.post(json.dumps({"widget": number, "done": True}))

    def _do(self, number: int, message: Mapping[str, Any]) -> None:
        if "make" in message:
            explorer = EXPLORERS[message["make"]](**message["arguments"])
            view = self.views[number] = PageView(number, explorer, self.post)
            self._answer(number, {"busy": "", **view.facts(), **view.state()})
        elif "places" in message:
            self.views[number].choose(message["places"])
        else:
            self.views[number].handle(message["tell"])

    def _answer(self, number: int, news: Mapping[str, Any]) -> None:
        self.post(json.dumps({"widget": number, "news": news}))
