"""MFU: the FLOPs of a token are those of the model's matrices, and the peak is the device's."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from course_lib.core.adding import AddingProblem
from course_lib.core.batch import Batch
from course_lib.core.model import Embed, SequenceModel, lstm_model
from course_lib.launcher.wire.progress import Progress
from course_lib.train.log import Log, MetricsLogger, Record, read_log
from course_lib.train.metrics import count_flops, peak_of


def words(steps: int, sequences: int) -> Batch:
    tokens = torch.zeros((steps, sequences), dtype=torch.int64)
    return Batch(tokens, tokens, torch.full((sequences,), steps), torch.ones_like(tokens, dtype=torch.bool))


def test_a_layer_multiplies_its_input_and_its_state_with_four_gates():
    hidden, layers, vocabulary = 24, 3, 50
    model = lstm_model(vocabulary=vocabulary, hidden=hidden, layers=layers)
    forward = layers * 2 * 4 * hidden * (hidden + hidden) + 2 * hidden * vocabulary  # a multiply-add is two
    assert count_flops(model, words(7, 5)) == 3 * forward
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


def test_a_real_update_multiplies_as_often():
    """All but the gradients that nobody wants: of the inputs, and of the state before the first step."""
    hidden, steps, sequences = 16, 20, 4
    data = AddingProblem(sequences, (steps, steps)).batch(range(sequences))
    model = lstm_model(features=2, hidden=hidden, layers=2, outputs=1).double()  # in float64, each step by itself
    with FlopCounterMode(display=False) as counter:
        model(data.inputs.double())[0].sum().backward()
    unwanted = sequences * (2 * 2 * hidden * steps + 2 * 2 * 4 * hidden * hidden)
    assert counter.get_total_flops() + unwanted == count_flops(model, data) * steps * sequences


@pytest.mark.parametrize(
    ("name", "precision", "teraflops"),
    [
        ("NVIDIA H200", "bf16", 989.5),
        ("NVIDIA H200", "fp32", 494.5),
        ("NVIDIA H200 NVL", "fp16", 835.5),
        ("NVIDIA H100 80GB HBM3", "fp16", 989.5),
        ("NVIDIA L40S", "bf16", 362.0),
    ],
)
def test_known_devices_have_a_peak(name, precision, teraflops):
    assert peak_of(name, precision) == pytest.approx(teraflops * 1e12)


def test_float32_has_a_smaller_peak_where_tf32_is_off(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert peak_of("NVIDIA H200", "fp32") == 67e12


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 4090", "NVIDIA GH200 480GB", "NVIDIA L40", "NVIDIA A10G", ""])
def test_an_unknown_device_has_none(name):
    assert peak_of(name, "bf16") is None


def test_a_model_that_looks_at_its_numbers_has_no_utilization():
    class Peeks(Embed):
        def forward(self, inputs, state=None):
            return super().forward(inputs.clamp(max=int(inputs.max())), state)

    assert count_flops(SequenceModel({0: Peeks(5, 3)}), words(4, 2)) == 0


def test_the_bar_and_the_log_say_it_where_it_is_known(tmp_path):
    shown = []
    metrics = MetricsLogger(0, 10, 0.0, log=Log(tmp_path / "log"), show=shown.append, utilization=2e6 / 1e12)
    metrics.tokens_per_second = 1e5
    assert metrics.mfu == 0.2
    metrics.log.append([Record(1, 0.5, 1e5, 1.0, metrics.mfu), Record(2, 0.5, 1e5, 2.0)])
    assert [record.mfu for record in read_log(tmp_path / "log")] == [0.2, None]
    assert "mfu" not in (tmp_path / "log").read_text().splitlines()[1]
    assert str(Progress(1, 10, 0.5, 1e5, 0.2)) == "1 of 10 updates, loss 0.5000, 100,000 tokens/s, MFU 20.0%"
    assert str(Progress(1, 10, 0.5, 1e5)) == "1 of 10 updates, loss 0.5000, 100,000 tokens/s"
