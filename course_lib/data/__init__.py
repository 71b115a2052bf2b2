"""What the lessons train on: batches of sequences, two problems that need no download, and who reads what."""

from course_lib.data.adding import AddingProblem, at_last_padded_step
from course_lib.data.batch import Batch, pack, pad, unpack
from course_lib.data.samplers import BucketedBatches, Load, ShardedBatches, load_of
from course_lib.data.text import Corpus, CorpusError, Streams, Vocabulary

__all__ = [
    "AddingProblem",
    "Batch",
    "BucketedBatches",
    "Corpus",
    "CorpusError",
    "Load",
    "ShardedBatches",
    "Streams",
    "Vocabulary",
    "at_last_padded_step",
    "load_of",
    "pack",
    "pad",
    "unpack",
]
