"""How the pages look, and the few lines that sort a table. Okabe and Ito's colours, darker where text needs it."""

from __future__ import annotations

LIGHT = {
    "paper": "#ffffff",
    "ink": "#222222",
    "quiet": "#555555",
    "line": "#c4c4c4",
    "right": "#0072b2",
    "wrong": "#a84a00",
    "notice": "#fdf0e8",
}
DARK = {
    "paper": "#16181c",
    "ink": "#e8e8e8",
    "quiet": "#b4b4b4",
    "line": "#4a4d52",
    "right": "#56b4e9",
    "wrong": "#f0a868",
    "notice": "#33261b",
}

STYLE = """
:root { color-scheme: light dark; LIGHT }
@media screen and (prefers-color-scheme: dark) { :root { DARK } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: WIDTH; margin: 1.5rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--paper); overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; padding-bottom: .2rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
h2, h3 { display: flex; gap: .2rem 1rem; justify-content: space-between; flex-wrap: wrap; }
h2, h3, tr[id], [id^="exercise-"] { scroll-margin-top: 1rem; }
.points { font-weight: normal; white-space: nowrap; }
a { color: var(--right); } a:hover { text-decoration-thickness: 2px; }
:focus-visible { outline: 3px solid var(--right); outline-offset: 2px; }
.skip { position: absolute; left: -999rem; background: var(--paper); padding: .5rem 1rem; z-index: 3; }
.skip:focus { left: .5rem; top: .5rem; }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
.quiet, figcaption, caption { color: var(--quiet); }
.notice { background: var(--notice); border-left: 4px solid var(--wrong); margin: .6rem 0; padding: .5rem 1rem; }
.parts { list-style: none; padding: 0; margin: 0; }
.parts > li { display: grid; grid-template-columns: 1.6rem 1fr auto; padding: .15rem 0; }
.parts > li .points { color: var(--quiet); padding-left: 1rem; }
.right .sign { color: var(--right); } .wrong .sign { color: var(--wrong); } .sign { font-weight: bold; }
.read { color: var(--quiet); margin: .2rem 0 0 1.6rem; }
nav ul, .names { list-style: none; padding: 0; margin: .5rem 0; display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; }
nav a, .names a { display: inline-block; padding: .15rem 0; min-height: 1.75rem; }
.scroll { overflow: auto; max-height: 75vh; width: fit-content; max-width: 100%; border: 1px solid var(--line); }
table { border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
caption { text-align: left; padding: .3rem 0; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, th:last-child, .words { text-align: left; }
.scroll thead th { position: sticky; top: 0; background: var(--paper); z-index: 1; vertical-align: bottom; }
.scroll th:first-child { position: sticky; left: 0; background: var(--paper); border-right: 1px solid var(--line); }
.scroll thead th:first-child { z-index: 2; }
.scroll tbody th { font-weight: normal; }
.scroll th:first-child, th:last-child, .words { min-width: 11rem; max-width: 18rem; }
.scroll th:first-child, th:last-child, .words { white-space: normal; overflow-wrap: anywhere; }
tfoot th, tfoot td { border-bottom: 0; color: var(--quiet); }
th button { font: inherit; color: inherit; background: none; border: 0; padding: .2rem .3rem; margin: 0 -.3rem;
  min-height: 1.75rem; min-width: 1.75rem; cursor: pointer; text-align: inherit; }
th button::after { content: " ↕"; color: var(--quiet); font-weight: normal; }
th[aria-sort="ascending"] button::after { content: " ↑"; color: inherit; }
th[aria-sort="descending"] button::after { content: " ↓"; color: inherit; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr)); gap: 1rem 1.5rem; }
.cards > section { border: 1px solid var(--line); padding: .2rem 1rem .8rem; }
figure { margin: 0; } svg { display: block; max-width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: var(--ink); text-anchor: middle; }
svg .bar { fill: var(--right); } svg .left-out { fill: none; stroke: var(--quiet); stroke-dasharray: 3 2; }
svg line { stroke: var(--quiet); }
summary { cursor: pointer; padding: .3rem 0; } details { border-bottom: 1px solid var(--line); }
.cards details { border: 0; } .cause { display: block; margin-left: 1rem; } .count { font-weight: bold; }
@media (max-width: 30rem) {
  th, td { padding: .25rem .4rem; }
  .scroll th:first-child { min-width: 6rem; max-width: 9rem; }
}
@media print {
  body { max-width: none; margin: 0; font-size: 10pt; } nav, .skip, th button::after { display: none !important; }
  .scroll { max-height: none; overflow: visible; border: 0; } .scroll th { position: static !important; }
  .wide table { font-size: 6pt; } .wide th, .wide td { padding: .1rem .12rem; } thead th { white-space: normal; }
  .scroll th:first-child { min-width: 14em; } .scroll thead th:last-child, .words { display: none; }
  th button { padding: 0; margin: 0; min-width: 0; }
  h2, h3 { break-after: avoid; } tr, li, .cards > section { break-inside: avoid; } a { color: inherit; }
}
"""

# Without it the rows stay in the order of the names.
SORT = """
const order = new Intl.Collator(undefined, { numeric: true }).compare;
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, place) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      const text = row => row.cells[place].textContent;
      const rows = [...body.rows].sort((a, b) => (up ? 1 : -1) * order(text(a), text(b)));
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      body.append(...rows);
    });
  });
}
"""


def style(*, wide: bool = False) -> str:
    """The style sheet of a page: of text, or as wide as a table of the class needs."""
    filled = STYLE.replace("LIGHT", _variables(LIGHT)).replace("DARK", _variables(DARK))
    return filled.replace("WIDTH", "80rem" if wide else "46rem") + ("@page { size: landscape; }\n" if wide else "")


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())
