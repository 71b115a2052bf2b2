"""Things to play with in a notebook. Each is a picture that is drawn again when a control moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_lib.data import BucketedBatches, Load, load_of
from course_lib.pictures import schedule_chart
from course_lib.pictures.palette import COLOURS, INK
from course_lib.pictures.picture import Picture
from course_lib.pictures.placement_bars import placement
from course_lib.planning.placement import BlockCost, Placement, balanced, step_cost
from course_lib.planning.schedules import SCHEDULES
from course_lib.planning.simulation import ActionCosts, simulate

SHOWN = 40  # batches in the picture


def explore_batches(lengths: Sequence[int], ranks: int = 4):
    """Sliders for batch size and pool: see padding, balance over ranks and mixing of a bucketed epoch."""
    import ipywidgets

    controls = {
        "tokens": ipywidgets.SelectionSlider(options=[2**power for power in range(8, 15)], value=2048),
        "pool": ipywidgets.SelectionSlider(options=[1, 2, 5, 10, 20, 50, 100], value=10),
        "ranks": ipywidgets.IntSlider(min=1, max=8, value=ranks),
    }
    labels = {"tokens": "tokens per batch", "pool": "batches per pool", "ranks": "ranks"}
    return explorer(lambda **chosen: bucketed_epoch(lengths, **chosen), controls, labels)


def explore_placement(costs: Sequence[BlockCost], stages: int):
    """A slider for each cut between stages: share the blocks out by hand, and compare with the solver."""
    import ipywidgets

    equal = [stage * len(costs) // stages for stage in range(1, stages)]
    names = [f"cut {number}" for number in range(1, stages)]
    controls = {
        name: ipywidgets.IntSlider(min=1, max=len(costs) - 1, value=value)
        for name, value in zip(names, equal, strict=True)
    }
    labels = {name: f"stage {stage} begins at" for stage, name in enumerate(names, start=1)}
    return explorer(lambda **chosen: cut_by_hand(costs, list(chosen.values())), controls, labels)


def cut_by_hand(costs: Sequence[BlockCost], cuts: Sequence[int]) -> Picture:
    """The placement that these cuts make, above the best there is. A cut that would leave a stage empty moves on."""
    yours = Placement.of_cuts(len(costs), rising(cuts, len(costs)))
    best = balanced(costs, yours.stages)
    ours, theirs = step_cost(yours, costs), step_cost(best, costs)
    picture = placement({"yours": yours, "the solver's": best}, costs)
    verdict = (
        f"Your slowest stage takes {ours.seconds / theirs.seconds:.2f} times the solver's, "
        f"your largest has {ours.bytes / theirs.bytes:.2f} times the memory of its largest."
    )
    return Picture(picture.figure, f"{verdict} {picture.alt}")


def rising(cuts: Sequence[int], blocks: int) -> list[int]:
    """The cuts, moved as little as it takes for every stage to have a block."""
    moved = [0]
    for number, cut in enumerate(cuts, start=1):
        last = blocks - (len(cuts) - number) - 1  # each stage after this one needs a block too
        moved.append(min(max(cut, moved[-1] + 1), last))
    return moved[1:]


def explore_schedules():
    """Choose a schedule and its sizes, for the same batch: see the timeline, the bubble and what each stage holds."""
    import ipywidgets

    def draw(schedule: str, stages: int, micro_batches: int, chunks: int, backward: float, link: float) -> Picture:
        made = SCHEDULES[schedule](stages, micro_batches, chunks)
        return schedule_chart.schedule(simulate(made, ActionCosts(1.0, backward, link).split_over(made)))

    controls = {
        "schedule": ipywidgets.Dropdown(options=list(SCHEDULES), value="1f1b"),
        "stages": ipywidgets.IntSlider(min=1, max=8, value=4),
        "micro_batches": ipywidgets.IntSlider(min=1, max=16, value=4),
        "chunks": ipywidgets.IntSlider(min=1, max=12, value=1),
        "backward": ipywidgets.FloatSlider(min=0.5, max=3, step=0.5, value=2),
        "link": ipywidgets.FloatSlider(min=0, max=0.2, step=0.01, value=0),
    }
    labels = {
        "schedule": "schedule",
        "stages": "stages",
        "micro_batches": "micro-batches",
        "chunks": "time chunks",
        "backward": "backward / forward",
        "link": "link / forward",
    }
    return explorer(draw, controls, labels)


def explorer(draw: Callable[..., Picture], controls: dict[str, Any], labels: dict[str, str]):
    """A box of controls above a picture; `draw` gets the controls' values by name whenever one changes."""
    import ipywidgets

    image = ipywidgets.Image(format="png")
    words = ipywidgets.HTML()

    def redraw(_: Any = None) -> None:
        picture = draw(**{name: control.value for name, control in controls.items()})
        image.value, words.value = picture.png(), picture.alt
        image.width = str(int(picture.figure.get_size_inches()[0] * 72))

    for name, control in controls.items():
        control.description = control.tooltip = labels[name]
        control.style.description_width = "9em"
        control.layout.width = "28em"
        control.observe(redraw, names="value")
    redraw()
    return ipywidgets.VBox([*controls.values(), words, image])


def bucketed_epoch(lengths: Sequence[int], tokens: int, pool: int, ranks: int) -> Picture:
    """The first batches of a bucketed epoch as bars of tokens and padding, and what the epoch costs as a whole."""
    batches = BucketedBatches(lengths, tokens, pool=pool).global_batches()
    load = load_of(batches, lengths, ranks)
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    bars, meters = figure.subplots(1, 2, width_ratios=(3, 1))
    _draw_bars(bars, numpy.asarray(lengths), batches[:SHOWN])
    _draw_meters(meters, load, ranks)
    return Picture(figure, f"{tokens} tokens per batch, pools of {pool}, {ranks} ranks: {load}")


def _draw_bars(axes: Axes, lengths: numpy.ndarray, batches: list[list[int]]) -> None:
    tokens = [int(lengths[batch].sum()) for batch in batches]
    cells = [len(batch) * int(lengths[batch].max()) for batch in batches]
    axes.bar(range(len(batches)), cells, color=COLOURS["idle"], label="padding")
    axes.bar(range(len(batches)), tokens, color=COLOURS["forward"], label="tokens")
    axes.set_xlabel(f"the first {len(batches)} updates of the epoch", color=INK)
    axes.set_ylabel("cells of the batch", color=INK)
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    _clear(axes)


def _draw_meters(axes: Axes, load: Load, ranks: int) -> None:
    idle = 1 - 1 / load.balance
    values = {"padding": load.padding, "mixing": load.mixing, f"idle of {ranks} ranks": idle}
    colours = (COLOURS["idle"], COLOURS["forward"], COLOURS["idle"])
    bars = axes.barh(list(values), list(values.values()), color=colours)
    axes.bar_label(bars, [f"{value:.1%}" for value in values.values()], padding=3, color=INK)
    axes.set_xlim(0, 1.25)
    axes.set_xticks([])
    axes.invert_yaxis()
    _clear(axes)


def _clear(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
