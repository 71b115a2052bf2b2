"""Bars that say how many, drawn as SVG, with the same in words."""

from __future__ import annotations

from course_lib.grading.pages.markup import plain
from course_lib.grading.pages.summary import Bar

WIDE, GAP, HIGH = 18, 8, 70  # of a bar, in pixels
ABOVE, BELOW = 16, 18  # room for the count and for the label


def bars(shown: list[Bar], unit: str, left_out: str) -> str:
    """A bar for each, with its count above it. The first is for those who are left out of the others."""
    tallest = max(1, *(bar.count for bar in shown))
    step, base = WIDE + GAP, ABOVE + HIGH
    width, height = step * len(shown) + GAP, base + BELOW
    drawn = [f'<line x1="0" x2="{width}" y1="{base}.5" y2="{base}.5"/>']
    for place, bar in enumerate(shown):
        left, tall = GAP + place * step, round(HIGH * bar.count / tallest, 1)
        middle, kind = left + WIDE / 2, "bar" if place else "left-out"
        if bar.count:
            drawn.append(f'<rect class="{kind}" x="{left}" y="{base - tall:g}" width="{WIDE}" height="{tall:g}"/>')
            drawn.append(f'<text x="{middle:g}" y="{base - tall - 4:g}">{bar.count}</text>')
        drawn.append(f'<text x="{middle:g}" y="{height - 5}">{plain(bar.label)}</text>')
    told = plain(in_words(shown, unit, left_out))
    return (
        f'<figure><svg role="img" aria-label="{told}" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}">{"".join(drawn)}</svg></figure>'
    )


def in_words(shown: list[Bar], unit: str, left_out: str) -> str:
    """What the bars show."""
    first, *others = shown
    said = [f"{bar.label} {unit}: {_students(bar.count)}" for bar in others if bar.count]
    return "; ".join([*said, *([f"{left_out}: {_students(first.count)}"] if first.count else [])]) or "nobody"


def _students(count: int) -> str:
    return "1 student" if count == 1 else f"{count} students"
