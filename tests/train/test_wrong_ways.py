"""Popular mistakes are found out by the comparison with one process: each of these trains, and none of them right."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course_lib.core.model import SequenceModel, cross_entropy, lstm_model
from course_lib.core.proof import same_as_one_process
from course_lib.core.shards import local_part
from course_lib.core.text import Corpus
from course_lib.data_parallel.ddp import DDP
from course_lib.model_parallel.model_parallel import ModelParallel
from course_lib.model_parallel.tensor_parallel import TensorParallel, UsedInParts, Whole
from course_lib.pipeline import pipeline
from course_lib.pipeline.pipeline import Execution, Pipeline
from course_lib.sharding.fsdp import FSDP, sharded_modules
from course_lib.sharding.hybrid import Hybrid
from tests.pipeline.test_pipeline import adam

CORPUS = Corpus.from_text("a b. c d e f g h i j k l m n. o p q. r s t u v w x y z. one two. three four. five six.")


def model() -> SequenceModel:
    return lstm_model(vocabulary=len(CORPUS.vocabulary), hidden=5, layers=4)


class MeanOfMeans(DDP):
    """Each rank divides by its own count."""

    def step(self, batch):
        self.optimizer.zero_grad()
        total, count = self.loss(self.parallel(batch.inputs, {})[0], batch)
        (total / count.clamp(min=1)).backward()
        self.optimizer.step()
        return total.detach() / count.clamp(min=1), count


class AveragesShards(FSDP):
    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        for module in sharded_modules(self.model):
            module.set_gradient_divide_factor(2.0)


class ShardsDifferentWeights(FSDP):
    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        for parameter in self.model.parameters():
            local_part(parameter.data).add_(0.1 * dist.get_rank())


class ForgetsReplicas(Hybrid):
    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.sum_over_replicas.parts = [[] for _ in self.sum_over_replicas.parts]


class SendsBackZeros(ModelParallel):
    def send(self, tensor, to):
        super().send(torch.zeros_like(tensor) if to < self.rank else tensor, to)


class UpdatesTooEarly(Pipeline):
    """Updates the weights when half of the pieces are through."""

    def step(self, batch):
        super().step(batch.rows(range(batch.sequences // 2)))
        return super().step(batch)


class LosesTheState(Pipeline):
    """Begins every chunk in the zero state."""

    def step(self, batch):
        parts = [super(LosesTheState, self).step(chunk) for chunk in batch.chunks(2)]
        return sum(loss * count for loss, count in parts) / batch.count, batch.mask.sum()


class ForgetsWeights(Pipeline):
    """Leaves out the weight gradients of the first micro-batch, which a split backward pass computes later."""

    def __init__(self, *given, **options):
        class Forgets(Execution):
            def weight_gradients(self, action):
                if action.micro_batch:
                    super().weight_gradients(action)

        pipeline.Execution = Forgets
        super().__init__(*given, schedule="zb-h1", **options)


class SumsNoInputs(TensorParallel):
    def __init__(self, *given, **options):
        UsedInParts.backward = staticmethod(lambda context, gradient: gradient)
        super().__init__(*given, **options)


class SumsTheOutputToo(TensorParallel):
    def __init__(self, *given, **options):
        def backward(context, from_gates, from_output):
            whole = sum(gradient for gradient in (from_gates, from_output) if gradient is not None).contiguous()
            dist.all_reduce(whole)
            return whole.split(context.sizes, dim=-1)[dist.get_rank()], None

        Whole.backward = staticmethod(backward)
        super().__init__(*given, **options)


WRONG = [MeanOfMeans, AveragesShards, ShardsDifferentWeights, SendsBackZeros, UpdatesTooEarly, LosesTheState]
WRONG += [ForgetsWeights, SumsNoInputs, SumsTheOutputToo]


@pytest.mark.parametrize(("wrong", "options"), [*((wrong, {}) for wrong in WRONG), (ForgetsReplicas, {"replicas": 2})])
def test_a_popular_mistake_is_found_out(wrong, options):
    training = {"model": model, "batches": [CORPUS.batch([0, 1, 2, 3, 4])], "optimizer": adam, "loss": cross_entropy}
    proof = same_as_one_process(wrong, ranks=2, **training, **options)
    assert not proof
    assert proof.steps[0].worst.startswith("blocks.")
