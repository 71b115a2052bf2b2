"""Imports of version 1 fail with a sentence that says where the names are now."""

from __future__ import annotations

import sys

MOVED = {
    "cli": "course_lib.command",
    "data": "course_lib.core (batches, text), padding (BucketedBatches) and train (token files)",
    "doctor": "course_lib.command (the report on this machine) and clusters (the health of the ranks)",
    "launchers": "course_lib.launcher",
    "lstm": "course_lib.core (the model, its memory), transformer (the GPT) and frameworks (TensorFlow, JAX)",
    "machine": "course_lib.runtime.machine; `cores` and `device` are in course_lib itself",
    "meter": "course_lib.core (meter, most_alive, saved_for_backward)",
    "pictures": "course_lib.drawing (draw_timeline, draw_curves, ...) or the package of the subject (draw_schedule)",
    "planning": "course_lib.messages (links), data_parallel (networks), model_parallel (placement), pipeline "
    "(schedules) and sharding (plans)",
    "settings": "course_lib.train (Settings)",
    "strategies": "course_lib.core (Single, Strategy), data_parallel (DDP, Accumulation), model_parallel, pipeline, "
    "sharding (FSDP, Hybrid) and train (make_strategy)",
    "training": "course_lib.core (same_as_one_process), one_device (train, epochs, evaluate), sharding (measurements) "
    "and train (jobs, checkpoints)",
}


class OldNames:
    """The last finder that Python asks: nobody else has found the module."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        place = MOVED.get(name.removeprefix("course_lib.")) if name.startswith("course_lib.") else None
        if place:
            raise ImportError(
                f"there is no {name} since version 2: look in {place}. CHANGELOG.md has the table", name=name
            )


def refuse() -> None:
    """Let imports of old packages fail with a sentence."""
    sys.meta_path.append(OldNames)  # pyright: ignore[reportArgumentType]
