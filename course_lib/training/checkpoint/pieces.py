"""Tensors in pieces, to and from a checkpoint: how `torch.distributed.checkpoint` is told who has what.

It knows sharded tensors of PyTorch's own; a rank of ours may have several pieces of one parameter, some rows of each of
an LSTM's gates. A planner says which piece belongs where, and PyTorch does the rest: of pieces that several ranks have
it writes one, and a rank that wants other pieces than were saved gets them put together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from course_lib.strategies.shards import Offsets, Shard


@dataclass(frozen=True)
class Pieces:
    """What this rank has of a tensor of that shape: pieces, by where they begin in it."""

    shape: tuple[int, ...]
    at: dict[Offsets, Tensor]

    @classmethod
    def of(cls, shard: Shard, values: Tensor | None = None) -> Pieces:
        """A shard's pieces; or those of other `values` that are cut like it, or, if they have another shape, whole."""
        values = shard.tensor if values is None else values
        if values.shape != shard.tensor.shape:
            return cls.whole(values)
        return cls(tuple(shard.shape), {at: piece.detach() for at, piece in shard.pieces(of=values) if piece.numel()})

    @classmethod
    def whole(cls, tensor: Tensor) -> Pieces:
        """All of a tensor."""
        return cls(tuple(tensor.shape), {(0,) * tensor.dim(): tensor.detach()})

    def copied(self) -> Pieces:
        """The same numbers in memory of their own, which the next update does not change."""
        return Pieces(self.shape, {at: piece.to("cpu", copy=True) for at, piece in self.at.items()})

    def chunk(self, offsets: Offsets) -> ChunkStorageMetadata:
        return ChunkStorageMetadata(torch.Size(offsets), self.at[offsets].shape)


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
                    pieces.chunk(offsets), TensorProperties.create_from_tensor(piece), torch.Size(pieces.shape)
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
    """Loads a dict of `Pieces`, into their tensors."""

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
                chunks = [pieces.chunk(offsets) for offsets in pieces.at]
                items += create_read_items_for_chunk_list(key, saved, chunks)
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self.state_dict[index.fqn].at[tuple(index.offset or ())]
