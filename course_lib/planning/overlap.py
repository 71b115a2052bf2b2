"""What computation hides of communication: one rule for replicas' sums and for sharded weights.

A device computes one thing at a time, and its network does one thing at a time, beside it. A message begins when what
it sends is there and the message before it is through; computation waits only for what it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from course_lib.planning.block_times import BlockSeconds


def sent_by(messages: Iterable[tuple[float, float]]) -> float:
    """When the last of these messages, (ready, seconds) in the order of sending, is through; 0 if there is none."""
    free = 0.0
    for ready, seconds in messages:
        free = max(free, ready) + seconds
    return free


def ready_times(start: float, end: float, shares: Sequence[float]) -> list[float]:
    """When each part is done of work from `start` to `end` that takes these shares, one after the other."""
    whole, done, times = sum(shares) or 1.0, start, []
    for share in shares:
        done += (end - start) * share / whole
        times.append(done)
    return times


@dataclass
class Sharded:
    """A device whose weights are gathered block by block: what it has computed, and sent, by when.

    A block is gathered while the one before it computes; if not `ahead`, only then, as where ranks share cores.
    """

    blocks: Sequence[BlockSeconds]  # for one micro-batch
    gather: Sequence[float]  # seconds to gather each block
    scatter: Sequence[float]  # seconds to sum its gradients, and to leave each rank its piece
    ahead: bool = True
    computed: float = 0.0
    sent: float = 0.0

    def step(self, micro_batches: int) -> float:
        """When the last gradient has been summed: which happens in the last micro-batch only."""
        for number in range(micro_batches):
            self._forward()
            self._backward(sends=number == micro_batches - 1)
        return max(self.computed, self.sent)

    def _forward(self) -> None:
        there = self._gather(0, self.computed)
        for place, block in enumerate(self.blocks):
            start = max(self.computed, there)
            self.computed = start + block.forward
            there = self._gather(place + 1, start if self.ahead else self.computed)

    def _backward(self, sends: bool) -> None:
        """The last block is still there: to drop it after its forward pass would be to gather it again at once."""
        there = 0.0
        for place in reversed(range(len(self.blocks))):
            start = max(self.computed, there)
            self.computed = start + self.blocks[place].backward
            there = self._gather(place - 1, start if self.ahead else self.computed)
            if sends:
                self.sent = max(self.sent, self.computed) + self.scatter[place]
                self.computed = self.computed if self.ahead else self.sent

    def _gather(self, place: int, ready: float) -> float:
        """When the block at this place is whole, if its gathering may begin then."""
        if place not in range(len(self.blocks)):
            return 0.0
        self.sent = max(self.sent, ready) + self.gather[place]
        return self.sent
