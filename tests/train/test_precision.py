"""`course train --precision`: in half precision as in full, from the command line, and resumed."""

from __future__ import annotations

from course_lib.command import main
from course_lib.train.checkpoint.files import latest_checkpoint, read_checkpoint
from course_lib.train.log import read_log

SMALL = ["--hidden", "8", "--batch", "8"]


def scaler_in(folder: str) -> dict[str, float]:
    return read_checkpoint(latest_checkpoint(folder)).notes["scaler"]


def test_a_run_in_fp16_resumes_with_its_scale_to_the_last_bit(tmp_path, monkeypatch):
    """The first updates are left out, until the scale is small enough; so a checkpoint may have nothing of Adam's."""
    monkeypatch.chdir(tmp_path)
    run = ["train", "single", *SMALL, "--precision", "fp16"]
    assert main([*run, "--updates", "6", "--log", "whole.jsonl", "--checkpoint", "whole"]) == 0
    saving = [*run, "--checkpoint", "saved", "--log", "parts.jsonl"]
    assert main([*saving, "--updates", "2"]) == 0
    assert scaler_in("saved")["scale"] < 2**16
    assert main([*saving, "--updates", "6", "--resume"]) == 0
    whole, parts = ([record.loss for record in read_log(name)] for name in ("whole.jsonl", "parts.jsonl"))
    assert parts == whole
    assert scaler_in("saved") == scaler_in("whole")
