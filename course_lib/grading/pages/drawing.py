"""Bars that say how many, drawn as SVG, with the same in words."""

from __future__ import annotations

from course_lib.checks.markup import plain
from course_lib.grading.pages.markup import count_of
from course_lib.grading.pages.summary import Bar

WIDE, GAP, HIGH = 18, 8, 70  # of a bar, in pixels
ABOVE, BELOW = 16, 18  # room for the count and for the label


def bars(shown: list[Bar]) -> str:
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
    told = plain(in_words(shown))
    return (
        f'<figure><svg role="img" aria-label="{told}" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}">{"".join(drawn)}</svg></figure>'
    )


def in_words(shown: list[Bar]) -> str:
    """What the bars show."""
    return "; ".join(f"{bar.told}: {count_of(bar.count, 'student')}" for bar in shown if bar.count) or "nobody"
