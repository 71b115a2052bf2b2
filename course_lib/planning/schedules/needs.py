"""What an action needs. With position g of the model, micro-batch m and time chunk c:

F(g, m, c) needs F(g-1, m, c), the activations, and F(g, m, c-1), the state (h, c);
R(g, m, c) needs F(g, m, c), from whose inputs and state it starts again;
B(g, m, c) needs F(g, m, c), and R(g, m, c) where there is one: what they kept; B(g+1, m, c), the gradient; and
B(g, m, c+1), the gradient of the state;
W(g, m, c) needs B(g, m, c).
"""

from __future__ import annotations

from functools import lru_cache

from course_lib.planning.schedules.actions import Action, Step
from course_lib.planning.schedules.layout import Layout


@lru_cache(maxsize=65536)  # asked for every action of every stage of every schedule that a planner tries
def own_needs(action: Action, chunks: int, recomputed: bool = False) -> tuple[Action, ...]:
    """What the same virtual stage must have done before `action`."""
    kind, (m, c, v) = action.kind, action.piece
    if kind == "F":
        return (Action("F", m, c - 1, v),) if c else ()
    if kind == "R":
        return (Action("F", m, c, v),)
    if kind == "W":
        return (Action("B", m, c, v),)
    kept = [Action("F", m, c, v), *([Action("R", m, c, v)] if recomputed else [])]
    return (*kept, Action("B", m, c + 1, v)) if c < chunks - 1 else tuple(kept)


@lru_cache(maxsize=65536)
def giver_of(action: Action, stage: int, places: Layout) -> Step | None:
    """The step at the neighbouring position of the model whose result `action` needs; None where there is none.

    From another stage the result comes over a link; at the tip of a V it is there at once.
    """
    if action.kind not in ("F", "B"):
        return None
    giver = (places.before if action.kind == "F" else places.after)(stage, action.virtual)
    return giver and (giver[0], Action(action.kind, action.micro_batch, action.chunk, giver[1]))


def why(action: Action, needed: Action) -> str:
    """Why a stage must do `needed` before `action`."""
    if action.kind == "W":
        return "weight gradients are made from what the backward pass leaves"
    if action.kind == "R":
        return "what is computed again was computed before"
    if needed.kind == "R":
        return "a backward needs what was computed again for it"
    if action.kind != needed.kind:
        return "a backward needs what its forward kept"
    if action.virtual != needed.virtual:
        return "its input comes from there" if action.kind == "F" else "its gradient comes from there"
    if action.kind == "F":
        return "a chunk starts in the state in which the chunk before it ended"
    return "the gradient of the state comes from the chunk after it"
