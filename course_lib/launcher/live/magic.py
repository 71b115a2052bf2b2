"""`%%ranks`: run a notebook's cell on live ranks. `%load_ext course_lib` loads it.

%%ranks 4          starts four ranks on first use and runs the cell on all of them
%%ranks            runs it on all existing ranks
%%ranks 1,3        runs it on these ranks; 0-2 is a range
%%rank 2           runs it on one rank
%ranks             shows the team; `%ranks restart` and `%ranks close` do what the team's methods do

The ranks are the notebook's `team`, a variable like any other: `team[2]["loss"]`, `draw_timeline(team)`.
"""

from __future__ import annotations

import re
from typing import Literal

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_cell_magic, magics_class

from course_lib.launcher.live.cell import CellRun
from course_lib.launcher.live.team import Team, ranks
from course_lib.launcher.notebook.launch import warm_up

USAGE = "write %%ranks 4 for all four ranks, %%ranks 1,3 or %%ranks 0-2 for some, %%rank 2 for one; --timeout 300"


Timeout = float | Literal["team"] | None


def parse_line(line: str) -> tuple[int | None, list[int] | None, Timeout]:
    """Return how many ranks to start, or which of them run the cell, and the timeout. Raises UsageError with advice."""
    words, timeout = line.split(), "team"
    if "--timeout" in words[:-1]:
        at = words.index("--timeout")
        seconds = words[at + 1]
        try:
            timeout = None if seconds == "none" else float(seconds)
        except ValueError:
            raise UsageError(f"--timeout {seconds}: give a number of seconds, or none to wait forever") from None
        del words[at : at + 2]
    text = "".join(words)
    if not re.fullmatch(r"|\d+|\d+(-\d+)?(,\d+(-\d+)?)*,?", text):
        raise UsageError(f"%%ranks {line}: {USAGE}")
    if text.isdigit():
        return int(text), None, timeout
    parts = [part.partition("-") for part in text.split(",") if part]
    chosen = [rank for low, _, high in parts for rank in range(int(low), int(high or low) + 1)]
    return None, chosen or None, timeout


@magics_class
class RanksMagics(Magics):
    """`%%ranks`, `%%rank` and `%ranks`, for the notebook's variable `team`."""

    shell: InteractiveShell  # pyright: ignore[reportIncompatibleVariableOverride]  (never None once registered)

    @line_cell_magic("ranks")
    def ranks(self, line: str, cell: str | None = None) -> CellRun | Team | None:
        """Run the cell on live ranks, and show its last expression for each. Without a cell, show the team."""
        if cell is None:
            return self._run_command(line.strip())
        count, chosen, timeout = parse_line(line)
        team = self._existing_team()
        if team is None and count is not None:
            self.shell.user_ns["team"] = ranks(count)
        elif team is not None and count not in (None, len(team)):
            raise UsageError(
                f"%%ranks {count}: this team has {len(team)} ranks. %%rank {count} runs the cell on rank {count}; "
                "for another number of ranks, close these first: %ranks close"
            )
        return self._run_cell(f"%%ranks {line}", cell, chosen, timeout)

    @cell_magic("rank")
    def rank(self, line: str, cell: str) -> CellRun | None:
        """Run the cell on one live rank, or on a few of them."""
        only, chosen, timeout = parse_line(line)
        return self._run_cell(f"%%rank {line}", cell, chosen if only is None else [only], timeout)

    def _run_cell(self, first: str, cell: str, chosen: list[int] | None, timeout: Timeout) -> CellRun | None:
        team = self._existing_team()
        if team is None:
            raise UsageError("there are no ranks yet: %%ranks 4 starts four")
        if team.is_closed:
            team.restart()
            print(f"[team] {len(team)} new ranks; the variables of the previous ones are lost")
        # The prompt's number: newer IPython versions increment `execution_count` before a cell runs, older ones after.
        file = self.shell.compile.cache(f"{first}\n{cell}", self.shell.displayhook.prompt_count)
        # The magic is line 1 of the cell: the empty line takes its place, so that line numbers match.
        run = team.run(f"\n{cell}", chosen, names=self.shell.user_ns, file=file, timeout=timeout)
        return run if run.texts else None

    def _run_command(self, command: str) -> Team | None:
        team = self._existing_team()
        if command not in ("", "restart", "close"):
            raise UsageError(f"%ranks {command}: {USAGE}; %ranks restart, %ranks close")
        if team is not None and command == "restart":
            team.restart()
        if team is not None and command == "close":
            team.close()
            del self.shell.user_ns["team"]
            return None
        return team

    def _existing_team(self) -> Team | None:
        team = self.shell.user_ns.get("team")
        if team is not None and not isinstance(team, Team):
            raise UsageError(
                f"`team` is {type(team).__name__} here, but %%ranks needs that name for its ranks: del team"
            )
        return team


def load(shell: InteractiveShell) -> None:
    """Register the magics."""
    warm_up()
    shell.register_magics(RanksMagics(shell))
