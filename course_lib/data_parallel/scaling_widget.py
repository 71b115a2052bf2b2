"""How far data parallelism scales: four numbers, a curve, and points measured on this machine."""

from __future__ import annotations

import statistics
import time
from math import log2

from course_lib.drawing.explorer import Button, Explorer, choice, powers_of_two, round_numbers, slider
from course_lib.drawing.svg import Drawing, element, line, path, table, text
from course_lib.messages.link import Link
from course_lib.runtime.words import size_in_words, time_in_words

LEFT, TOP, WIDTH, HEIGHT = 62, 34, 560, 270  # the axes
TRIED = (2, 4)  # numbers of ranks to measure
MOST_BYTES, MOST_SECONDS = 100e6, 0.5  # limits for a measurement on this machine
KINDS = {"strong": "strong: the same batch, divided", "weak": "weak: a batch for each rank"}
TIMES = {seconds: time_in_words(seconds) for seconds in round_numbers(1e-3, 10)}
LATENCIES = {seconds: time_in_words(seconds) for seconds in round_numbers(1e-6, 1e-2)}
SIZES = {size: size_in_words(size) for size in round_numbers(1e4, 1e10)}
RATES = {size: f"{size_in_words(size)}/s" for size in round_numbers(1e8, 1e12)}


class ScalingExplorer(Explorer):
    """Show the speed-up that latency, bandwidth, computation and gradients allow, and what this machine reaches.

    `measured` holds the speed-ups that this machine has reached, by number of ranks.
    """

    title = "How far data parallelism scales"

    def __init__(self) -> None:
        super().__init__(
            [
                choice("kind", "scaling", KINDS, "strong"),
                slider("compute", "computation on one rank", TIMES, 0.2),
                slider("size", "gradients", SIZES, 2e7),
                slider("latency", "latency", LATENCIES, 5e-5),
                slider("bandwidth", "bandwidth", RATES, 2e9),
                slider("most", "ranks, at most", powers_of_two(4, 1024), 64),
            ],
            [Button("measure", "Measure on this machine", "Measuring on 1, 2 and 4 ranks ...", ranks=True)],
        )

    def changed(self, names: set[str]) -> None:
        """Discard measurements when the work changes."""
        self.news = ""
        if names & {"kind", "compute", "size"}:
            self.measured: dict[int, float] = {}

    def press_measure(self) -> None:
        """Measure the same update on one rank and on several: a paced computation, and a real all-reduce."""
        from course_lib.launcher.notebook.launch import launch

        compute, size = self.values["compute"], self.values["size"]
        if compute > MOST_SECONDS or size > MOST_BYTES:
            limits = f"{time_in_words(MOST_SECONDS)} of computation and {size_in_words(MOST_BYTES)} of gradients"
            self.news = f"Not measured: choose at most {limits}."
            return
        runs = {ranks: launch(_paced_update, self.seconds(ranks)[0], int(size), ranks=ranks) for ranks in (1, *TRIED)}
        work = {ranks: ranks if self.values["kind"] == "weak" else 1 for ranks in TRIED}
        self.measured = {ranks: work[ranks] * max(runs[1]) / max(runs[ranks]) for ranks in TRIED}
        self.news = "Measured."

    def seconds(self, ranks: float) -> tuple[float, float]:
        """Return how long each rank computes in an update, and how long the ring all-reduce after it takes."""
        link = Link(self.values["latency"], self.values["bandwidth"])
        computing = self.values["compute"] / (ranks if self.values["kind"] == "strong" else 1)
        return computing, link.all_reduce_seconds(self.values["size"], ranks)

    def at(self, ranks: float) -> float:
        """Return the speed-up over one rank that the four numbers allow."""
        work = ranks if self.values["kind"] == "weak" else 1
        return work * self.values["compute"] / sum(self.seconds(ranks))

    def _share(self, ranks: int) -> float:
        """Return the share of an update's time that the all-reduce takes."""
        computing, all_reduce = self.seconds(ranks)
        return all_reduce / (computing + all_reduce)

    def draw(self) -> Drawing:
        most = self.values["most"]
        tried = powers_of_two(1, most)
        fine = [2 ** (log2(most) * number / 60) for number in range(61)]
        curve = [(ranks, self.at(ranks)) for ranks in fine]
        top = 2 ** max(1, -(-log2(max(1.0, *(speed for _, speed in curve))) // 1))
        shapes = [_axes(most, top)]
        shapes.append(path([_point(ranks, ranks, most, top) for ranks in fine if ranks <= top * 1.001], "dashed"))
        shapes.append(path([_point(ranks, speed, most, top) for ranks, speed in curve], "curve"))
        for ranks, speed in self.measured.items():
            x, y = _point(ranks, speed, most, top)
            shapes.append(element("circle", cx=x, cy=y, r=6, class_="point"))
            shapes.append(text(x + 9, y + 14, f"measured here: {speed:.2f}", "ink small"))
        rows = [[str(ranks), f"{self.at(ranks):.2f}", f"{self._share(ranks):.0%}"] for ranks in tried]
        below = table(["ranks", "times as fast", "spent in all-reduce"], rows, "The same in numbers")
        return Drawing("".join(shapes), LEFT + WIDTH + 110, TOP + HEIGHT + 48, self._words(tried), below)

    def _words(self, tried: tuple[int, ...]) -> str:
        best = max(tried, key=self.at)
        spent = f" ({self._share(best):.0%} of the time is all-reduce)." if best > 1 else ": don't divide this work."
        sentence = f"{self.news} Best: {self.at(best):.3g} times as fast as one rank, on {best}{spent}"
        if half := next((ranks for ranks in tried[1:] if self._share(ranks) > 0.5), 0):
            sentence += f" From {half} ranks on, more than half of the time is all-reduce."
        points = [f"{self.measured[n]:.2f} on {n} ranks (the curve predicts {self.at(n):.2f})" for n in self.measured]
        if points:
            sentence += f" This machine, paced: {', '.join(points)}."
        return sentence.strip()


explore_scaling = ScalingExplorer


def _point(ranks: float, speed: float, most: int, top: float) -> tuple[float, float]:
    """Return a point on two logarithmic axes, where ideal scaling is a straight line."""
    share = (log2(max(speed, 0.5)) + 1) / (log2(top) + 1)  # the axis begins at half as fast as one rank
    return LEFT + WIDTH * log2(max(ranks, 1)) / log2(most), TOP + HEIGHT * (1 - share)


def _axes(most: int, top: float) -> str:
    shapes = [text(0, 18, "times as fast as one rank", "ink strong")]
    speeds = [0.5, *powers_of_two(1, int(top))]
    for speed in speeds if len(speeds) <= 8 else speeds[::2]:
        _, y = _point(1, speed, most, top)
        shapes += [line(LEFT, y, LEFT + WIDTH, y, "line", opacity=0.35)]
        shapes += [text(LEFT - 8, y + 4.5, f"{speed:g}", "ink", "end")]
    for ranks in powers_of_two(1, most):
        x, y = _point(ranks, 0.5, most, top)
        shapes += [line(x, y, x, y + 5), text(x, y + 19, str(ranks), "ink", "middle")]
    shapes.append(text(LEFT + WIDTH / 2, TOP + HEIGHT + 38, "ranks", "ink", "middle"))
    for class_, x, words in (("dashed", LEFT + WIDTH - 170, "ideal"), ("curve", LEFT + WIDTH - 80, "predicted")):
        shapes += [line(x, 12, x + 30, 12, class_), text(x + 36, 16, words)]
    return "".join(shapes)


def _paced_update(compute: float, size: int) -> float:
    """Return the seconds of an update on a rank that sleeps for as long as a device would compute."""
    import torch
    import torch.distributed as dist

    gradients, times = torch.ones(max(1, size // 4)), []
    for _ in range(4):
        dist.barrier()
        started_at = time.monotonic()
        time.sleep(compute)
        if dist.get_world_size() > 1:
            dist.all_reduce(gradients)
        times.append(time.monotonic() - started_at)
    return statistics.median(times[1:])
