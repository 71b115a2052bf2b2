"""`%%ranks`: run a notebook's cell on live ranks. `%load_ext course_lib` loads it.

%%ranks 4          starts four ranks on first use and runs the cell on all of them
%%ranks            runs it on all existing ranks
%%ranks 1,3        runs it on these ranks; 0-2 is a range
%%rank 2           runs it on one rank
%ranks             shows the team; `%ranks restart` and `%ranks close` do what the team's methods do

The ranks are the notebook's `team`, a variable like any other: `team[2]["loss"]`, `pictures.timeline(team)`.
"""

from __future__ import annotations

import contextlib
import html
import re
from dataclasses import dataclass
from typing import Any

from IPython.core.completer import SimpleCompletion, context_matcher
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_cell_magic, magics_class

from course_lib.launchers.diagnosis.errors import LaunchError
from course_lib.launchers.live.cell import CellRun
from course_lib.launchers.live.team import Team, ranks
from course_lib.launchers.local import warm_up

USAGE = "write %%ranks 4 for all four ranks, %%ranks 1,3 or %%ranks 0-2 for some, %%rank 2 for one; --timeout 300"
QUESTION = re.compile(r"^\s*\?{0,2}(?P<name>[A-Za-z_][\w.]*)\?{0,2}\s*$")


@dataclass(frozen=True)
class Line:
    """The arguments of `%%ranks`: how many ranks to start, or which of them run the cell."""

    count: int | None = None
    chosen: tuple[int, ...] | None = None
    options: tuple[tuple[str, float | None], ...] = ()


def parse_line(line: str) -> Line:
    """Parse the line's arguments. Raises UsageError with advice."""
    words, options = line.split(), {}
    if "--timeout" in words[:-1]:
        at = words.index("--timeout")
        seconds = words[at + 1]
        try:
            options["timeout"] = None if seconds == "none" else float(seconds)
        except ValueError:
            raise UsageError(f"--timeout {seconds}: give a number of seconds, or none to wait forever") from None
        del words[at : at + 2]
    text = "".join(words)
    if not re.fullmatch(r"|\d+|\d+(-\d+)?(,\d+(-\d+)?)*,?", text):
        raise UsageError(f"%%ranks {line}: {USAGE}")
    option_items = tuple(options.items())
    if text.isdigit():
        return Line(count=int(text), options=option_items)
    parts = [part.partition("-") for part in text.split(",") if part]
    chosen = tuple(rank for low, _, high in parts for rank in range(int(low), int(high or low) + 1))
    return Line(chosen=chosen or None, options=option_items)


@magics_class
class RanksMagics(Magics):
    """The magics, and what they add to the shell: completion and `?` for names on rank 0."""

    shell: InteractiveShell  # pyright: ignore[reportIncompatibleVariableOverride]  (never None once registered)

    @line_cell_magic("ranks")
    def ranks(self, line: str, cell: str | None = None) -> CellRun | Team | None:
        """Run the cell on live ranks, and show its last expression for each. Without a cell, show the team."""
        if cell is None:
            return self._run_command(line.strip())
        request = parse_line(line)
        team = self._team(request.count)
        return self._run(team, f"%%ranks {line}", cell, request)

    @cell_magic("rank")
    def rank(self, line: str, cell: str) -> CellRun | None:
        """Run the cell on one live rank, or on a few of them."""
        request = parse_line(line)
        if request.count is not None:
            request = Line(chosen=(request.count,), options=request.options)
        return self._run(self._team(None), f"%%rank {line}", cell, request)

    def _run(self, team: Team, first: str, cell: str, request: Line) -> CellRun | None:
        question = QUESTION.match(cell) if "?" in cell else None
        if question:
            rank = request.chosen[0] if request.chosen else 0
            print(team.describe(question["name"], rank) or f"there is no {question['name']} on rank {rank}")
            return None
        # The prompt's number: newer IPython versions increment `execution_count` before a cell runs, older ones after.
        number = self.shell.displayhook.prompt_count
        file = self.shell.compile.cache(f"{first}\n{cell}", number)
        # The magic is line 1 of the cell: the empty line takes its place, so that line numbers match.
        run = team.run(f"\n{cell}", request.chosen, names=self.shell.user_ns, file=file, **dict(request.options))
        return run if run.texts else None

    def _team(self, count: int | None) -> Team:
        """Return the notebook's team, starting it if needed."""
        team = self._existing_team()
        if team is None:
            if count is None:
                raise UsageError("there are no ranks yet: %%ranks 4 starts four")
            team = self.shell.user_ns["team"] = ranks(count)
        elif count not in (None, len(team)):
            raise UsageError(
                f"%%ranks {count}: this team has {len(team)} ranks. %%rank {count} runs the cell on rank {count}; for "
                "another number of ranks, close these first: %ranks close"
            )
        elif team.is_closed:
            team.restart()
            print(f"[team] {len(team)} new ranks; the variables of the previous ones are lost")
        return team

    def _existing_team(self) -> Team | None:
        team = self.shell.user_ns.get("team")
        if team is not None and not isinstance(team, Team):
            raise UsageError(
                f"`team` is {type(team).__name__} here, but %%ranks needs that name for its ranks: del team"
            )
        return team

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

    def on_rank_0(self) -> Team | None:
        """Return the notebook's team if we can ask its rank 0 about names."""
        team = self.shell.user_ns.get("team")
        return team if isinstance(team, Team) and not team.is_closed else None


def load(shell: InteractiveShell) -> None:
    """Register the magics, and make completion and `?` look on rank 0, too, after the notebook."""
    warm_up()
    magics = RanksMagics(shell)
    shell.register_magics(magics)

    @context_matcher()
    def names_on_rank_0(context: Any) -> dict[str, Any]:
        team = magics.on_rank_0()
        if team is None or not context.full_text.lstrip().startswith("%%rank"):
            return {"completions": []}
        text = re.split(r"[^\w.]", context.text_until_cursor)[-1]
        names: list[str] = []
        with contextlib.suppress(LaunchError):
            names = team.complete(text)
        return {
            "completions": [SimpleCompletion(text=name, type="on rank 0") for name in names],
            "matched_fragment": text,
        }

    inspect = shell.object_inspect_mime

    def inspect_also_on_rank_0(oname: str, *arguments: Any, **keywords: Any) -> dict[str, Any]:
        try:
            return inspect(oname, *arguments, **keywords)
        except KeyError:
            with contextlib.suppress(LaunchError):
                if (team := magics.on_rank_0()) and (text := team.describe(oname)):
                    return {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}
            raise

    shell.Completer.custom_matchers.append(names_on_rank_0)
    shell.object_inspect_mime = inspect_also_on_rank_0
