"""How `torch.distributed.checkpoint` writes and reads our pieces. Import this late: the import takes over a second.

PyTorch supports only its own sharded tensors. Our ranks may each have several pieces of a parameter, such as some rows
of each of an LSTM's gates. A planner says which piece belongs where, and PyTorch does the rest: it writes a piece only
once if several ranks have it, and assembles the pieces that a rank needs from the saved ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from course_lib.strategies.shards import Offsets
from course_lib.training.checkpoint.state import Pieces

__all__ = [
    "CheckpointException", "FileSystemReader", "FileSystemWriter", "LoadPieces", "PiecesWriter", "SavePieces",
    "async_save", "load", "save",
]  # fmt: skip


class SavePieces(DefaultSavePlanner):
    """Saves a dict of `Pieces`."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        items = [
            WriteItem(
                MetadataIndex(key, torch.Size(offsets)),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    _chunk(offsets, piece), TensorProperties.create_from_tensor(piece), torch.Size(pieces.shape)
                ),
            )
            for key, pieces in self.state_dict.items()
            for offsets, piece in pieces.at.items()
        ]
        self.plan = SavePlan(items)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self.state_dict[index.fqn].at[tuple(index.offset or ())]


class LoadPieces(DefaultLoadPlanner):
    """Loads a dict of `Pieces` into their tensors."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def create_local_plan(self) -> LoadPlan:
        items: list[ReadItem] = []
        for key, pieces in self.state_dict.items():
            saved = self.metadata.state_dict_metadata[key] if self.metadata else None
            if isinstance(saved, TensorStorageMetadata):
                chunks = [_chunk(offsets, piece) for offsets, piece in pieces.at.items()]
                items += create_read_items_for_chunk_list(key, saved, chunks)
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self.state_dict[index.fqn].at[tuple(index.offset or ())]


class PiecesWriter(FileSystemWriter):
    """Copies `Pieces` before training continues, because torch's writer cannot."""

    def stage(self, state_dict: dict[str, Pieces]) -> dict[str, Pieces]:
        return {name: pieces.copied() for name, pieces in state_dict.items()}


def _chunk(offsets: Offsets, piece: Tensor) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(offsets), piece.shape)
