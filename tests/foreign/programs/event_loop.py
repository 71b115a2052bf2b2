"""asyncio on a rank: tasks that read from one another while the main thread communicates in an executor."""

import asyncio

import torch
import torch.distributed as dist


async def produce(queue):
    for number in range(5):
        await asyncio.sleep(0.001)
        await queue.put(number)


async def collect(queue):
    return [await queue.get() for _ in range(5)]


async def program():
    queue = asyncio.Queue()
    _, numbers = await asyncio.gather(produce(queue), collect(queue))
    total = torch.tensor(float(sum(numbers)))
    await asyncio.get_running_loop().run_in_executor(None, dist.all_reduce, total)
    return total.item()


def main():
    return asyncio.run(program())


def check(values):
    assert values == [10.0 * len(values)] * len(values)
