"""What every lesson stands on: batches, the LSTM, the training step that all strategies share, and the proof.

Read `batch`, `model`, `shards`, `strategy`, `proof`; then data (`adding`, `text`, `samplers`), costs (`memory`,
`metering`) and speed (`fast`, `pacing`).
"""

from typing import TYPE_CHECKING

from course_lib.runtime.exports import exports

if TYPE_CHECKING:
    from course_lib.core.adding import AddingProblem, at_last_padded_step
    from course_lib.core.batch import Batch, copied_ahead, pad
    from course_lib.core.fast import keep_weights_where_they_are
    from course_lib.core.memory import (
        LSTM,
        BatchSize,
        BlockSize,
        Memory,
        Savings,
        predict_block_memory,
        predict_memory,
        predict_with,
    )
    from course_lib.core.metering import meter, most_alive, saved_for_backward
    from course_lib.core.model import (
        Loss,
        Recurrent,
        SequenceModel,
        State,
        States,
        cross_entropy,
        detach_states,
        lstm_model,
        squared_error,
    )
    from course_lib.core.pacing import OneNode, pace_blocks, pace_layers
    from course_lib.core.proof import Proof, same_as_one_process
    from course_lib.core.samplers import ShardedBatches
    from course_lib.core.shards import BadShards, Shard
    from course_lib.core.strategy import Single, Strategy, broadcast_weights, sum_over_ranks
    from course_lib.core.text import (
        Corpus,
        CorpusError,
        ShardedText,
        Streams,
        Vocabulary,
        next_token_batch,
        write_shards,
    )
    from course_lib.drawing.curves import draw_curves
    from course_lib.drawing.picture import Picture
    from course_lib.drawing.svg import diagram
    from course_lib.drawing.timeline import draw_comparison, draw_messages, draw_timeline

__getattr__, __dir__ = exports(__name__)
