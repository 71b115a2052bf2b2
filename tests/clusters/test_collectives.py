"""The flight recorders' view of a hang: done, waiting or never called, and the frame around the odd one out."""

from __future__ import annotations

import pickle

import pytest
from matplotlib.colors import to_hex

from course_lib.clusters.recorded_calls import draw_collectives, evidence
from course_lib.drawing.picture import COLORS, INK


def dump(*calls: str, ranks: int = 4, first: int = 1, backend: str = "nccl") -> dict:
    """What a rank has written that made these calls, such as "all_reduce 3 completed"."""
    entries = [
        {
            "collective_seq_id": number,
            "process_group": ("0", "default_pg"),
            "profiling_name": f"{backend}:{call.split()[0]}",
            "input_sizes": [[int(call.split()[1])]],
            "state": call.split()[2],
        }
        for number, call in enumerate(calls, first)
    ]
    return {"pg_config": {"0": {"ranks": str(list(range(ranks)))}}, "entries": entries}


def boxes(picture) -> dict:
    """By (number, row): the color of the box, its words, and whether it is framed."""
    (axes,) = picture.figure.axes
    words = [text.get_text().replace("\n", " ") for text in axes.texts]
    places = [tuple(map(int, text.get_position())) for text in axes.texts]
    looks = [(to_hex(box.get_facecolor()), to_hex(box.get_edgecolor()) == INK) for box in axes.patches]
    return {place: (*look, said) for place, look, said in zip(places, looks, words, strict=True)}


DONE, WAITS = "all_reduce 3 completed", "all_reduce 3 scheduled"


def framed(picture) -> list:
    return [place for place, (_, frame, _) in boxes(picture).items() if frame]


def test_the_real_hang_shows_which_rank_never_called():
    picture = draw_collectives(
        {rank: pickle.loads(evidence(f"flight_recorder_{rank}").read_bytes()) for rank in range(4)}
    )
    shown = boxes(picture)
    done = {place for place, (color, _, _) in shown.items() if color == COLORS["communication"].lower()}
    assert done == {(number, row) for number in range(1, 5) for row in range(4)}
    assert shown[5, 2] == ("#ffffff", True, "never called")
    assert [shown[5, row] for row in (0, 1, 3)] == [(COLORS["idle"].lower(), False, "all_reduce waiting")] * 3
    assert framed(picture) == [(5, 2)]
    assert "first differ at number 5: rank 0 all_reduce [1000000] waiting; " in picture.alt
    assert picture.alt.endswith("rank 2 never called; rank 3 all_reduce [1000000] waiting. Framed: rank 2")


@pytest.mark.parametrize(
    ("records", "odd"),
    [
        ([[DONE, WAITS], [DONE], [DONE], [DONE]], [(2, 0)]),  # one more than the others
        ([[DONE], ["broadcast 3 completed"], [DONE], [DONE]], [(1, 1)]),
        ([[DONE, WAITS], [DONE, "all_reduce 4 scheduled"], [DONE, WAITS], [DONE]], [(2, row) for row in range(4)]),
        ([[WAITS], [], [WAITS], []], [(1, row) for row in range(4)]),  # two against two
        ([[DONE, DONE]] * 4, []),
    ],
)
def test_the_frame_is_where_the_ranks_first_differ(records, odd):
    assert sorted(framed(draw_collectives({rank: dump(*calls) for rank, calls in enumerate(records)}))) == odd


def test_what_is_not_in_a_dump_is_not_held_against_a_rank():
    dumps = {0: dump(DONE, DONE, WAITS), 2: dump(DONE, WAITS, first=2), 3: dump(DONE, DONE)}
    picture = draw_collectives(dumps)
    shown = boxes(picture)
    assert [shown[number, 1][2] for number in (1, 2, 3)] == ["no dump"] * 3
    assert shown[1, 2][2] == "not kept"
    assert framed(picture) == [(3, 3)]


def test_only_the_last_collectives_are_drawn():
    picture = draw_collectives({rank: dump(*[DONE] * 30, ranks=2) for rank in range(2)}, most=4)
    assert {number for number, _ in boxes(picture)} == {27, 28, 29, 30}
    assert picture.alt == "Collectives 27 to 30 of 2 ranks: no rank differs from the others"


def test_records_that_cannot_answer_are_refused():
    with pytest.raises(ValueError, match="gloo doesn't record which calls are done"):
        draw_collectives({0: dump(WAITS, ranks=1, backend="gloo")})
    with pytest.raises(ValueError, match="group='7': the dumps hold no collective"):
        draw_collectives({0: dump(DONE, ranks=1)}, group="7")
