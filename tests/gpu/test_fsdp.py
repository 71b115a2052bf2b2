"""On a GPU, a sharded model trains on its own weights: `nn.LSTM` must not move what is gathered."""

from __future__ import annotations

import pytest
import torch

from course_lib import device, launch
from course_lib.core.model import cross_entropy, lstm_model
from course_lib.core.strategy import Single
from course_lib.sharding import measurement
from course_lib.sharding.fsdp import FSDP
from tests.data_parallel.test_accumulation import UNEVEN, VOCABULARY, adam, text_batches


def losses(kind, hidden, **options):
    torch.manual_seed(0)
    model = lstm_model(vocabulary=VOCABULARY, hidden=hidden, layers=3).double()
    strategy = kind(model, adam, cross_entropy, clip=0.5, **options)
    found = [strategy.step(strategy.share(batch))[0].item() for batch in text_batches(UNEVEN) * 2]
    return found, strategy.full_state(), str(device())


@pytest.mark.parametrize("hidden", [5, 64])
@pytest.mark.parametrize("options", [{}, {"reshard_after_forward": False}, {"micro_batches": 2}], ids=str)
def test_many_updates_are_those_of_plain_training(options, hidden):
    def both():
        return losses(FSDP, hidden, **options), losses(Single, hidden)

    run = launch(both, ranks=1, timeout=180)
    assert not run.output  # no warning that asks for `flatten_parameters`
    (sharded, state, where), (plain, expected, _) = run[0]
    assert where.startswith("cuda")
    assert sharded == pytest.approx(plain, abs=1e-10)
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-8)


def test_flattened_weights_are_found_out():
    """Without the guard the loss leaves plain training's from the second update on, silently."""

    def unguarded():
        import course_lib.sharding.fsdp as module

        module.keep_weights_where_they_are = lambda block: None
        return losses(FSDP, 64)[0], losses(Single, 64)[0]

    sharded, plain = launch(unguarded, ranks=1, timeout=180)[0]
    assert sharded[0] == pytest.approx(plain[0], abs=1e-10)
    assert max(abs(a - b) for a, b in zip(sharded, plain, strict=True)) > 1e-6


def test_bytes_at_rest_on_the_gpu():
    def measured():
        strategy = measurement.make_sharded(
            lstm_model(vocabulary=VOCABULARY, hidden=8, layers=2), cross_entropy, "zero-3"
        )
        return measurement.measure_sharding(strategy, strategy.share(text_batches(UNEVEN)[0]))

    found = launch(measured, ranks=1, timeout=180)[0]
    assert found.optimizer == 2 * found.parameters == 2 * found.gradients
