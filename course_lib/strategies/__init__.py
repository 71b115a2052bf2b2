"""How to train: one file per way, all of one shape."""

from course_lib.strategies.accumulation import Accumulation
from course_lib.strategies.ddp import DDP
from course_lib.strategies.hybrid import Hybrid
from course_lib.strategies.model_parallel import ModelParallel
from course_lib.strategies.parameter_server import ParameterServer
from course_lib.strategies.pipeline import Pipeline
from course_lib.strategies.single import Single
from course_lib.strategies.strategy import Strategy
from course_lib.strategies.tensor_parallel import TensorParallel

__all__ = [
    "DDP",
    "Accumulation",
    "Hybrid",
    "ModelParallel",
    "ParameterServer",
    "Pipeline",
    "Single",
    "Strategy",
    "TensorParallel",
]
