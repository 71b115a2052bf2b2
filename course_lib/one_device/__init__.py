"""Where the time and the memory of one device go (lesson 01).

Read `loop`, `measurement`, `block_times`: how long a block takes for a piece of any shape, measured on an H200.
"""

from typing import TYPE_CHECKING

from course_lib.runtime.exports import exports

if TYPE_CHECKING:
    from course_lib.messages.link import fit_line
    from course_lib.one_device.block_times import BlockSeconds, BlockTimes, h200_block_times, read_block_times
    from course_lib.one_device.loop import BatchReader, History, epochs, evaluate, train
    from course_lib.one_device.measurement import measure_memory, seconds_per_update
    from course_lib.one_device.memory_widget import draw_memory, explore_memory

__getattr__, __dir__ = exports(__name__)
