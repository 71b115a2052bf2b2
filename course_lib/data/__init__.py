"""The lessons' training data: batches of sequences, two problems that need no download, and samplers."""

from course_lib.data.adding import AddingProblem, at_last_padded_step
from course_lib.data.batch import Batch, copied_ahead, pad
from course_lib.data.samplers import BucketedBatches, Load, ShardedBatches, load_of
from course_lib.data.text import Corpus, CorpusError, ShardedText, Streams, Vocabulary, next_token_batch, write_shards
from course_lib.data.token_files import TokenFile, open_tokens

__all__ = [
    "AddingProblem", "Batch", "BucketedBatches", "Corpus", "CorpusError", "Load", "ShardedBatches", "ShardedText",
    "Streams", "TokenFile", "Vocabulary", "at_last_padded_step", "copied_ahead", "load_of", "next_token_batch",
    "open_tokens", "pad", "write_shards",
]  # fmt: skip
