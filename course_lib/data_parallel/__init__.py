"""Replicas that average their gradients, at once or after several micro-batches (lessons 02 and 04).

Read `ddp`, `network`; `scaling_widget` draws the speed-up that more ranks can give.
"""

from typing import TYPE_CHECKING

from course_lib.runtime.exports import exports

if TYPE_CHECKING:
    from course_lib.data_parallel.ddp import DDP, Accumulation, TracedDDP, accumulate
    from course_lib.data_parallel.network import paced_network, sent_by
    from course_lib.data_parallel.scaling_widget import explore_scaling
    from course_lib.messages.link import Link
    from course_lib.one_device.block_times import h200_block_times
    from course_lib.one_device.loop import epochs, evaluate, train

__getattr__, __dir__ = exports(__name__)
