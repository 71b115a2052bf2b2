"""The same LSTM in TensorFlow and in JAX (lesson 10)."""

from typing import TYPE_CHECKING

from course_lib.runtime.exports import exports

if TYPE_CHECKING:
    from course_lib.frameworks.other_frameworks import (
        closeness,
        get_ready,
        jax_layer,
        jax_model,
        keras_model,
        only_this_machine,
        wavefront,
    )
    from course_lib.pipeline.actions import Action
    from course_lib.pipeline.schedule_picture import draw_schedule
    from course_lib.pipeline.simulation import TimedAction

__getattr__, __dir__ = exports(__name__)
