"""Why one plan is faster than another: where the time of an update goes in each, side by side."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.planning.plan import PARTS, Plan


@dataclass(frozen=True)
class Explanation:
    """Two plans, part by part. `str` shows a table and a sentence; `pictures.plan_bars` draws the same."""

    winner: Plan
    runner_up: Plan

    @property
    def differences(self) -> dict[str, float]:
        """Seconds that the runner-up spends more on each part, the largest first; less, where they are negative."""
        ours, theirs = self.winner.parts, self.runner_up.parts
        found = {part: theirs.get(part, 0.0) - ours.get(part, 0.0) for part in PARTS}
        return dict(sorted(found.items(), key=lambda item: -abs(item[1])))

    @property
    def reason(self) -> str:
        """Why it wins, in a sentence or two."""
        ahead = self.runner_up.seconds - self.winner.seconds
        saved, paid = (
            [f"{abs(seconds) * 1000:.1f} ms of {part}" for part, seconds in self.differences.items() if wanted(seconds)]
            for wanted in (lambda seconds: seconds > 0.01 * abs(ahead), lambda seconds: seconds < -0.01 * abs(ahead))
        )
        said = f"{self.winner.mesh} is ahead of {self.runner_up.mesh} by {ahead * 1000:.1f} ms "
        said += f"({ahead / self.runner_up.seconds:.1%}). It saves {' and '.join(saved[:2]) or 'nothing worth a line'}"
        return said + (f", and pays {' and '.join(paid[:2])} for it." if paid else ".")

    def __str__(self) -> str:
        both = (self.winner, self.runner_up)
        names = [f"{plan.mesh}, {plan.pieces}" for plan in both]
        width = max(map(len, names))
        rows = [f"{'':<18}  " + "  ".join(f"{name:>{width}}" for name in names)]
        for part in PARTS:
            if any(part in plan.parts for plan in both):
                cells = [f"{plan.parts.get(part, 0.0) * 1000:.1f} ms" for plan in both]
                rows.append(f"{part:<18}  " + "  ".join(f"{cell:>{width}}" for cell in cells))
        totals = "  ".join(f"{f'{plan.seconds * 1000:.1f} ms':>{width}}" for plan in both)
        return "\n".join([*rows, f"{'an update':<18}  {totals}", self.reason])


def explain(plan: Plan, runner_up: Plan) -> Explanation:
    """Where the time goes in both, and what makes the difference."""
    return Explanation(plan, runner_up)
