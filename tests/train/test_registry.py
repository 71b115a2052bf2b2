"""Strategies by name: the options that they take, whoever wrote them, and what is refused in a sentence."""

from __future__ import annotations

import inspect
import re
from typing import Optional, Union

import pytest
import torch

from course_lib.core.strategy import Single
from course_lib.launcher.jobs.target import parse
from course_lib.model_parallel.placement import Placement
from course_lib.pipeline.simulation import ActionCosts
from course_lib.train.registry import STRATEGIES, checked_options, find_strategy, make_strategy
from tests.core import local_sgd


class Tuned(Single):
    """A strategy of your own, whose type hints are written in every way that Python has."""

    def __init__(
        self,
        model,
        optimizer,
        loss,
        *,
        every: Optional[int] = None,  # noqa: UP045
        ratio: "Union[float, None]" = None,  # noqa: UP007, UP037
        name: str = "",
        pace: ActionCosts | None = None,
        sizes: list[int] | None = None,
        stages: Placement | None = None,
        **options,
    ):
        super().__init__(model, optimizer, loss, **options)


class InFloat32(Single):
    def __init__(self, model, optimizer, loss):
        super().__init__(model, optimizer, loss)


BAD_OPTIONS = {
    "speed=3": "strategy=own has no option speed: it takes every, ratio, name",
    "every='banana'": "every=banana: give a whole number",
    "every=True": "every=True: give a whole number",
    "ratio='banana'": "ratio=banana: give a number above 0, or None",
    "ratio=-3": "ratio=-3: give a number above 0, or None",
    "name=3": "name=3: give a word",
    "pace=1": "pace=1: this can only be set in code; leave it out",
    "stages=3": "stages=3: give the stage of each block, for example 0,0,1,1",
    "clip='abc'": "clip=abc: give a number above 0, or None",
    "carry_state=2": "carry_state=2: give True or False",
}


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setitem(STRATEGIES, "own", Tuned)


@pytest.mark.parametrize("option", BAD_OPTIONS)
def test_an_option_that_its_type_excludes_gets_a_sentence(own, option):
    with pytest.raises(ValueError, match="^" + BAD_OPTIONS[option]):
        make_strategy("own", 0.1, parse([option]))


def test_good_options_arrive_as_they_are(own):
    given = parse(["every=3", "ratio=2", "name=a", "sizes=3,4", "stages=0,0,1", "clip=None"])
    kind, options = checked_options("own", given)
    assert kind is Tuned
    assert options == {**given, "stages": Placement((0, 0, 1))}


BAD_NAMES = {
    "pipelin": "strategy=pipelin: choose single, ddp, accumulation, model, tensor, pipeline, hybrid, fsdp, or name",
    "nowhere:Mine": "strategy nowhere:Mine: nowhere: there is no such file or module",
    "tests.core.local_sgd:Missing": "tests.core.local_sgd has no function 'Missing'; it defines ",
    "tests.core.local_sgd:replace": "strategy tests.core.local_sgd:replace: this is not a class",
    ":Mine": "strategy :Mine: name a file and a function in it",
    "pathlib:Path": "Path has no share(): derive it from course_lib.core.strategy.Strategy, which has one",
    "boom.py:Mine": "strategy boom.py:Mine: boom.py cannot be imported: it raises ZeroDivisionError: division by zero "
    "(boom.py, line 2)",
}


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_is_no_strategy_gets_a_sentence(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "boom.py").write_text("\n1 / 0\n")
    with pytest.raises(ValueError, match=re.escape(BAD_NAMES[name])):
        find_strategy(name)


def test_a_file_named_like_a_module_of_pythons_does_not_replace_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text(inspect.getsource(local_sgd))
    assert find_strategy("json.py:LocalSGD").__name__ == "LocalSGD"
    import json

    assert json.loads("1") == 1


def test_half_precision_is_for_strategies_that_take_it(own, monkeypatch):
    assert make_strategy("own", 0.1, {}, "bf16").keywords["autocast"] is torch.bfloat16
    with pytest.raises(ValueError, match="precision=fp8: choose fp32, bf16, fp16"):
        make_strategy("own", 0.1, {}, "fp8")
    monkeypatch.setitem(STRATEGIES, "old", InFloat32)
    with pytest.raises(ValueError, match="strategy=old computes only in fp32: leave out --precision bf16"):
        make_strategy("old", 0.1, {}, "bf16")
