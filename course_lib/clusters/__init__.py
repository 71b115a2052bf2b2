"""Many machines: what ranks recorded before a hang, which rank is slow, what failures cost (lessons 08 and 09).

Read `recorded_calls`, `health`, `goodput`, `parameter_server`. Traces are in `launcher.tracing`, hangs in
`launcher.hangs`.
"""

from typing import TYPE_CHECKING

from course_lib.runtime.exports import exports

if TYPE_CHECKING:
    from course_lib.clusters.goodput import HOUR, Fleet, expected_goodput, simulate_run
    from course_lib.clusters.health import examine_ranks
    from course_lib.clusters.links_picture import draw_link_matrix
    from course_lib.clusters.parameter_server import ParameterServer
    from course_lib.clusters.recorded_calls import draw_collectives, evidence
    from course_lib.core.adding import AddingProblem
    from course_lib.core.memory import BatchSize
    from course_lib.core.model import lstm_model, squared_error
    from course_lib.core.proof import same_as_one_process
    from course_lib.core.text import (
        ShardedText,
        Vocabulary,
        by_rank_and_worker,
        by_rank_only,
        cut,
        next_token_batch,
        write_shards,
    )
    from course_lib.data_parallel.network import paced_network
    from course_lib.drawing.curves import draw_curves
    from course_lib.drawing.timeline import draw_comparison, draw_timeline
    from course_lib.launcher.hangs import flight_recorder
    from course_lib.launcher.tracing.trace_file import read_trace
    from course_lib.messages.link import Link
    from course_lib.model_parallel.work import Work
    from course_lib.one_device.block_times import h200_block_times
    from course_lib.padding.buckets import BucketedBatches
    from course_lib.sharding.choose_plan import best_of_each_way, plans
    from course_lib.sharding.network import Network

__getattr__, __dir__ = exports(__name__)
