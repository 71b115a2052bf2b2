"""The code that runs next to an answer. In the sandbox, this folder replaces `course_lib.checks`.

A submission that imports `check` there gets these stand-ins and finds no expected values, wrong answers or solutions.
"""


def check(number: str, answer: object) -> float:
    """Do nothing: grading runs the answer itself."""
    return 0.0


def hint(number: str) -> None:
    """Do nothing: grading gives no hints."""


def solution(number: str) -> None:
    """Do nothing: the sandbox has no solutions."""


def predict(number: str, answer: object = None) -> None:
    """Do nothing: there is nobody to ask."""


def reveal(number: str, came_out: object) -> None:
    """Do nothing: there is nobody to show it to."""


def progress() -> None:
    """Do nothing: grading keeps its own records."""


STAND_INS = {each.__name__: each for each in (check, hint, solution, predict, reveal, progress)}
