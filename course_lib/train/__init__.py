"""A whole training run: settings, tasks, checkpoints, log. `course train` runs it.

Read `job`, `checkpoint`, `registry`, `tasks`. The loop itself is `one_device.loop`.
"""

from typing import TYPE_CHECKING

from course_lib.runtime.exports import exports

if TYPE_CHECKING:
    from course_lib.train.checkpoint.files import (
        Checkpoint,
        CheckpointError,
        Position,
        latest_checkpoint,
        read_checkpoint,
    )
    from course_lib.train.checkpoint.save_and_load import (
        BackgroundSaver,
        load_checkpoint,
        save_checkpoint,
        writing_into,
    )
    from course_lib.train.job import train_job
    from course_lib.train.log import read_log
    from course_lib.train.losses_picture import draw_losses
    from course_lib.train.settings import Settings
    from course_lib.train.token_files import TokenFile, open_tokens

__getattr__, __dir__ = exports(__name__)
