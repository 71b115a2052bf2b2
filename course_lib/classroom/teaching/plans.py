"""Plans for half a day, a day, two days and a semester: what `course agenda` says, with what to know beforehand."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.classroom.agenda import agenda_markdown, clock, lessons_from, make_agenda
from course_lib.course_files import course_folder


@dataclass(frozen=True)
class Plan:
    """The options of a `course agenda`."""

    name: str
    title: str
    days: int
    begin: int  # minutes after midnight
    until: int
    lessons: str
    exercise_minutes: int
    weekly: bool = False

    @property
    def command(self) -> str:
        """The command that makes the same timetable."""
        words = f"course agenda --days {self.days} --from {clock(self.begin)} --until {clock(self.until)} "
        return f"{words}--lessons {self.lessons} --exercises {self.exercise_minutes}{' --weekly' * self.weekly}"


MORNING, LECTURE = 9 * 60 + 30, 10 * 60 + 15
PLANS = (
    Plan("half_a_day", "Half a day", 1, MORNING, 13 * 60, "00,02", 20),
    Plan("one_day", "One day", 1, MORNING, 17 * 60, "00-03", 15),
    Plan("two_days", "Two days", 2, MORNING, 17 * 60, "00-06,08", 10),
    Plan("semester", "A semester", 14, LECTURE, LECTURE + 90, "00-09", 30, weekly=True),
)


def plan_page(plan: Plan) -> str:
    """A plan: what to know beforehand, and its timetable."""
    path = course_folder() / "docs" / "teaching" / "notes" / f"{plan.name}.md"
    before = path.read_text(encoding="utf-8").strip() if path.is_file() else ""
    agenda = make_agenda(
        lessons_from(plan.lessons),
        days=plan.days,
        begin=plan.begin,
        until=plan.until,
        exercise_minutes=plan.exercise_minutes,
    )
    made = f"Made by `{plan.command}`; `--date` adds dates."
    return "\n\n".join(filter(None, [f"# {plan.title}", before, made, agenda_markdown(agenda, pages=True)]))
