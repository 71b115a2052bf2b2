// Tabs as ARIA describes them: a click or the arrow keys choose one, and its panel is shown.

/** Make the tabs of a list work; `chosen` is told which one was chosen. */
export function makeTabs(list, chosen) {
  const tabs = [...list.querySelectorAll("[role=tab]")];
  const choose = tab => {
    for (const each of tabs) {
      const yes = each === tab;
      each.setAttribute("aria-selected", String(yes));
      each.tabIndex = yes ? 0 : -1;
      document.getElementById(each.getAttribute("aria-controls")).hidden = !yes;
    }
    chosen(tab);
  };
  for (const tab of tabs) tab.addEventListener("click", () => choose(tab));
  list.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
    next.focus();
    choose(next);
  });
}
