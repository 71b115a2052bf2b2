"""What runs beside an answer. In the sandbox, this folder takes the place of `course_lib.checks`.

So a submission that asks for `check` gets these stand-ins, and there is nothing else to find: no expected values, no
wrong answers, no solutions.
"""


def check(number: str, answer: object) -> float:
    """Nothing: grading looks at the answer itself."""
    return 0.0


def hint(number: str) -> None:
    """Nothing: grading gives no hints."""


def solution(number: str) -> None:
    """Nothing: there are no solutions here."""


def predict(number: str, answer: object = None) -> None:
    """Nothing: nobody is asked."""


def reveal(number: str, came_out: object) -> None:
    """Nothing: nobody looks."""


def progress() -> None:
    """Nothing: grading keeps its own records."""
