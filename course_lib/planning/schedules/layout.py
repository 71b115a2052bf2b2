"""Where the parts of a model lie, if a stage holds several of them: its virtual stages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

LAYOUTS = ("loop", "v")


@dataclass(frozen=True)
class Layout:
    """Which virtual stage of which stage holds which part of the model. A position counts the parts in order.

    In a loop, part after part goes round all stages: stages 0, 1, 2, then 0, 1, 2 again. In a V, every second round
    goes backwards: 0, 1, 2, then 2, 1, 0, so that two neighbouring parts at each tip lie on the same stage.
    """

    stages: int
    virtual: int = 1
    style: str = "loop"

    def __post_init__(self) -> None:
        if self.style not in LAYOUTS:
            raise ValueError(f"layout={self.style!r}: choose {' or '.join(LAYOUTS)}")
        if min(self.stages, self.virtual) < 1:
            raise ValueError(f"stages={self.stages}, virtual={self.virtual}: a schedule needs at least one of each")

    @property
    def positions(self) -> int:
        """How many parts the model is cut into."""
        return self.stages * self.virtual

    def position(self, stage: int, virtual: int = 0) -> int:
        """Which part of the model the stage's virtual stage holds."""
        turned = self.style == "v" and virtual % 2
        return virtual * self.stages + (self.stages - 1 - stage if turned else stage)

    def place(self, position: int) -> tuple[int, int]:
        """(stage, virtual) of that part of the model."""
        virtual, within = divmod(position, self.stages)
        turned = self.style == "v" and virtual % 2
        return (self.stages - 1 - within if turned else within), virtual

    def before(self, stage: int, virtual: int) -> tuple[int, int] | None:
        """Where the part before this one lies, as (stage, virtual); None for the model's first part."""
        return _neighbour(self, stage, virtual, -1)

    def after(self, stage: int, virtual: int) -> tuple[int, int] | None:
        """Where the part after this one lies, as (stage, virtual); None for the model's last part."""
        return _neighbour(self, stage, virtual, 1)


@lru_cache(maxsize=65536)  # asked for every action of every schedule that a planner tries
def _neighbour(layout: Layout, stage: int, virtual: int, way: int) -> tuple[int, int] | None:
    position = layout.position(stage, virtual) + way
    return layout.place(position) if 0 <= position < layout.positions else None
