"""Batches of sequences of similar length (lesson 03).

Read `buckets`. Padding itself, and its mask, are in `core.batch`.
"""

from typing import TYPE_CHECKING

from course_lib.runtime.exports import exports

if TYPE_CHECKING:
    from course_lib.data_parallel.ddp import DDP
    from course_lib.one_device.loop import epochs, evaluate, train
    from course_lib.padding.batches_widget import explore_batches
    from course_lib.padding.buckets import BucketedBatches, Load, load_of
    from course_lib.padding.padding_picture import draw_padding

__getattr__, __dir__ = exports(__name__)
