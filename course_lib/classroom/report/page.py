"""The report of a class as a page: beliefs before and after, exercises, when it was where, who was stuck."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.checks.markup import marked, plain, with_code
from course_lib.checks.prediction import LETTERS, Choice, Prediction
from course_lib.classroom.report.history import History, RaisedHand
from course_lib.classroom.tally import ROUNDS, Answers
from course_lib.grading.pages.looks import SORT
from course_lib.grading.pages.markup import count_of, document, name

SECTIONS = {
    "beliefs": "What the class believed",
    "questions": "Questions",
    "exercises": "Exercises",
    "sections": "Sections",
    "hands": "Hands",
    "learners": "Learners",
}
FILES = {"learners.csv": "a line for each learner", "questions.csv": "a line for each choice"}
WIDE, HIGH = 120, 12  # of a bar, in pixels
OTHER = Choice("another number", None, believes="an answer that nobody has foreseen")


NOT_ASKED = "–"  # noqa: RUF001 - a dash


@dataclass(frozen=True)
class Belief:
    """A misconception, and how many had it; after is None where nobody was asked again."""

    question: Prediction
    words: str
    before: int
    after: int | None

    @property
    def last(self) -> int:
        return self.before if self.after is None else self.after


def report_page(history: History) -> str:
    """The whole page."""
    content = {
        "beliefs": _beliefs(history),
        "questions": _questions(history),
        "exercises": _exercises(history),
        "sections": _sections(history),
        "hands": _hands(history),
        "learners": _learners(history),
    }
    places = "".join(f'<li><a href="#{place}">{title}</a></li>' for place, title in SECTIONS.items())
    files = "".join(f'<li><a href="{file}">{file}</a>, {what}</li>' for file, what in FILES.items())
    sections = "\n".join(
        f'<section aria-labelledby="{place}"><h2 id="{place}">{SECTIONS[place]}</h2>\n{text}\n</section>'
        for place, text in content.items()
    )
    head = f"<header><h1>{plain(history.title)}</h1>\n<p>{_in_short(history)}</p>"
    nav = f'<nav aria-label="On this page"><ul>{places}{files}</ul></nav></header>'
    body = f'{head}\n{nav}\n<main id="main">\n{sections}\n</main>'
    return document(f"{history.title}: report", "To the report", body, SORT, wide=True)


def _in_short(history: History) -> str:
    if not history.events:
        return f"{count_of(len(history.names), 'learner')}; nothing has happened yet."
    times = [event["received"] for _, event in history.events]
    parts = [
        count_of(len(history.names), "learner"),
        f"from {history.clock(min(times))} to {history.clock(max(times))}",
        f"{count_of(len(history.tally.askings), 'question')} asked",
        f"{count_of(len(history.of_kind('checked')), 'check')} run",
        f"{count_of(len(history.hands), 'hand')} raised",
        f"“slower, please” {count_of(len(history.of_kind('slower')), 'time')}",
    ]
    return ", ".join(parts) + "."


def _answers(history: History, number: str) -> list[Answers]:
    """Before and after."""
    return [history.tally.answers.get((number, round_), Answers()) for round_ in ROUNDS]


def _asked(history: History) -> list[Prediction]:
    """The questions that somebody has answered."""
    questions = history.course.questions.values()
    return [each for each in questions if any(answers.said for answers in _answers(history, each.number))]


def _beliefs(history: History) -> str:
    """Each misconception that somebody had, those first that the most had when they were last asked."""
    found = [
        belief for question in _asked(history) for belief in _beliefs_of(question, *_answers(history, question.number))
    ]
    found.sort(key=lambda each: (-each.last, -each.before, each.question.number))
    rows = [
        f'<tr><td class="words">{marked(each.words)}</td><td>{each.before}</td>'
        f"<td>{NOT_ASKED if each.after is None else each.after}</td>"
        f'<td class="words"><a href="#question-{each.question.number}">{each.question.number}</a></td></tr>'
        for each in found
    ]
    heads = ("misconception", *ROUNDS, "question")
    return _table("Table of misconceptions", heads, rows) if rows else "<p>No answer was wrong.</p>"


def _beliefs_of(question: Prediction, before: Answers, after: Answers) -> list[Belief]:
    made = []
    for place, choice in enumerate(question.choices):
        if choice.believes and (before.counts[place] or after.counts[place]):
            again = after.counts[place] if after.said else None
            made.append(Belief(question, choice.believes, before.counts[place], again))
    return made


def _questions(history: History) -> str:
    return "\n".join(_question(question, _answers(history, question.number)) for question in _asked(history)) or (
        "<p>Nobody has answered a question.</p>"
    )


def _question(question: Prediction, rounds: list[Answers]) -> str:
    rows = []
    for place, choice in enumerate(question.choices):
        rows.append(
            _choice("" if question.typed else f"{LETTERS[place]}) ", choice, [_share(each, place) for each in rounds])
        )
    if any(each.counts[-1] for each in rounds):
        rows.append(_choice("", OTHER, [_share(each, -1) for each in rounds]))
    head = f'<h3 id="question-{question.number}"><span>{question.number} {marked(question.question)}</span></h3>'
    return f"{head}\n{_table(f'Answers to {question.number}', ('choice', *ROUNDS, 'believes'), rows)}"


def _choice(letter: str, choice: Choice, shares: list[tuple[int, int]]) -> str:
    says = f"{letter}{marked(choice.says)}"
    if choice.is_right:
        says, believes = (
            f"<b>{says}</b>",
            f'<b class="right"><span class="sign">✓</span> right</b>: {marked(choice.why)}',
        )
    else:
        believes = marked(choice.believes)
    bars = "".join(f"<td>{_bar(*share, solid=place == 1)}</td>" for place, share in enumerate(shares))
    return f'<tr><td class="words">{says}</td>{bars}<td class="words">{believes}</td></tr>'


def _share(answers: Answers, place: int) -> tuple[int, int]:
    return answers.counts[place], len(answers.said)


def _bar(count: int, all_: int, *, solid: bool) -> str:
    """So many of all, as a bar and as a number."""
    if not all_:
        return NOT_ASKED
    wide, kind = round((WIDE - 2) * count / all_, 1), "bar" if solid else "left-out"
    drawn = f'<rect class="{kind}" x="1" y="1" width="{wide:g}" height="{HIGH - 2}"/>' if count else ""
    return (
        f'{count} of {all_}<svg aria-hidden="true" viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" height="{HIGH}">{drawn}'
        f'<line x1="0" x2="{WIDE}" y1="{HIGH - 0.5}" y2="{HIGH - 0.5}"/></svg>'
    )


def _exercises(history: History) -> str:
    rows = []
    for number, exercise in history.course.exercises.items():
        trials = history.tally.exercises.get(number)
        if trials is None:
            continue
        made = sorted(trials.mistakes.items(), key=lambda each: (-len(each[1]), each[0]))
        mistakes = "".join(
            f'<li><span class="count">{len(who)}</span> {with_code(mistake or "no mistake that is known")}'
            f"{f' ({plain(part)})' if part else ''}</li>"
            for (part, mistake), who in made
        )
        tried = len(trials.passed) + len(trials.trying)
        rows.append(
            f'<tr><td class="words">{number} {plain(exercise.title)}</td><td>{len(trials.passed)}</td><td>{tried}</td>'
            f'<td class="words">{f"<ul>{mistakes}</ul>" if mistakes else ""}</td></tr>'
        )
    heads = ("exercise", "passed", "tried", "mistakes, and how many learners made each")
    return _table("Table of exercises", heads, rows) if rows else "<p>Nobody has checked an exercise.</p>"


def _sections(history: History) -> str:
    rows = [
        f'<tr><td class="words">{visit.lesson} · {plain(visit.section)}</td>'
        f"<td>{history.clock(visit.times[0])}</td><td>{history.clock(visit.half)}</td><td>{history.clock(visit.times[-1])}</td>"
        f'<td class="words">{len(visit.times)} of {len(history.names)}</td></tr>'
        for visit in history.visits
    ]
    heads = ("section", "first came", "half had come", "last came", "learners")
    return _table("When sections were reached", heads, rows) if rows else "<p>Nobody has reached a section.</p>"


def _hands(history: History) -> str:
    rows = [
        f'<tr><td class="words">{name(history.name(hand.learner))}</td><td>{history.clock(hand.since)}</td>'
        f"<td>{_waited(hand)}</td><td>{'yes' if hand.showed else ''}</td>"
        f'<td class="words">{plain(" · ".join(filter(None, (hand.lesson, hand.section))))}</td></tr>'
        for hand in history.hands
    ]
    heads = ("learner", "raised at", "waited", "showed a cell", "section")
    return _table("Hands in the order of raising", heads, rows) if rows else "<p>No hand was raised.</p>"


def _waited(hand: RaisedHand) -> str:
    return "to the end" if hand.until is None else f"{(hand.until - hand.since) / 60:.0f} min"


def _learners(history: History) -> str:
    rows = []
    for learner, called in history.names.items():
        marks = history.marks[learner]
        cells = [marks.right("before"), marks.right("after")]
        cells += [
            f"{len(marks.passed)} of {len(marks.points)}" if marks.points else "",
            f"{sum(marks.points.values()):g}",
        ]
        cells += [str(marks.hands or "")]
        last = plain(" · ".join(filter(None, marks.last)))
        numbers = "".join(f"<td>{text}</td>" for text in cells)
        rows.append(f'<tr><th scope="row">{name(called)}</th>{numbers}<td class="words">{last}</td></tr>')
    heads = ("learner", "right before", "right after", "exercises passed", "points", "hands", "last seen in")
    return _table("Table of learners", heads, rows, kind="sortable") if rows else "<p>Nobody has joined.</p>"


def _table(caption: str, heads: tuple[str, ...], rows: list[str], kind: str = "") -> str:
    columns = "".join(f'<th scope="col">{head}</th>' for head in heads)
    lines = "\n".join(rows)
    return (
        f'<div class="scroll" role="region" aria-label="{plain(caption)}" tabindex="0">\n'
        f'<table{f" class={kind!r}" if kind else ""}><caption class="hidden">{plain(caption)}</caption>\n'
        f"<thead><tr>{columns}</tr></thead>\n<tbody>\n{lines}\n</tbody></table></div>"
    )
