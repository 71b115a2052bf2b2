// Predictions that are answered on a page. Answers stay in this browser; nothing is sent anywhere.
"use strict";
(() => {
  const KEPT = "course-predictions"; // number -> { said, right } or { skipped: true }
  const LETTERS = "abcdefgh";

  const read = () => {
    try {
      return JSON.parse(localStorage.getItem(KEPT)) || {};
    } catch {
      return {};
    }
  };

  const known = read();

  const keep = (number, answer) => {
    known[number] = answer;
    try {
      localStorage.setItem(KEPT, JSON.stringify({ ...read(), [number]: answer }));
    } catch {
      // This browser keeps nothing: the answer holds until the page is left.
    }
    scores();
  };

  const element = (tag, attributes, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  };

  // 1.5, 3/2, 1,000 and 27% are numbers.
  const numberOf = (text) => {
    const plain = text.trim().replace(/,(?=\d{3}\b)/g, "").replace(",", ".");
    const [, top, bottom = "1", percent] = /^([-+]?[\d.]+(?:e[-+]?\d+)?)(?:\s*\/\s*([\d.]+))?\s*(%?)$/i.exec(plain) || [];
    return Number(top) / Number(bottom) / (percent ? 100 : 1);
  };

  // ---- one prediction ----------------------------------------------------------------------------------------------

  const arrange = (box) => {
    const facts = JSON.parse(box.dataset.prediction);
    const fold = document.querySelector(`details.outcome[data-number="${facts.number}"]`);
    const result = document.querySelector(`[aria-label="Result of prediction ${facts.number}"]`);
    const status = box.querySelector("[role=status]");
    const controls = facts.typed ? [field()] : [...box.querySelectorAll("li")].map(button);

    function button(item, index) {
      const made = element("button", { type: "button", "aria-pressed": "false", onclick: () => answer(index, LETTERS[index]) });
      made.append(...item.childNodes);
      item.append(made);
      return made;
    }

    function field() {
      const input = element("input", { type: "text", autocomplete: "off", "aria-label": "Your prediction, a number", size: 10 });
      const take = (event) => {
        event.preventDefault();
        const said = numberOf(input.value);
        if (!Number.isFinite(said)) status.textContent = "Type a number, such as 12, 1.5 or 3/2.";
        else answer(facts.bounds.findIndex(([low, high]) => low <= said && said <= high), said);
      };
      const send = element("button", { type: "submit" }, "Submit");
      status.parentElement.before(element("form", { class: "prediction-field", onsubmit: take }, input, ` ${facts.unit} `, send));
      return input;
    }

    function answer(index, said) {
      if (known[facts.number] && !known[facts.number].skipped) return;
      keep(facts.number, { said, right: index === facts.right });
      show();
    }

    function show() {
      const answered = known[facts.number];
      if (!answered) return;
      fold.open = true;
      if (answered.skipped) {
        status.replaceChildren("You skipped this one; you can still answer. The result is open below. ", wayToResult());
        return;
      }
      for (const control of controls) control.setAttribute("aria-disabled", "true");
      if (facts.typed) controls[0].readOnly = true;
      box.classList.add("answered");
      const index = facts.typed ? -1 : LETTERS.indexOf(answered.said);
      if (!facts.typed) controls[facts.right].classList.add("is-right");
      if (facts.typed) controls[0].value = answered.said;
      else controls[index].setAttribute("aria-pressed", "true");
      const words = facts.typed ? `${answered.said} ${facts.unit}`.trim() : controls[index].textContent;
      const verdict = answered.right ? "✓ As you said" : "✗ The result is different. You said";
      const right = facts.typed || answered.right ? "" : ` What the run shows: ${controls[facts.right].textContent}.`;
      status.replaceChildren(element("strong", { class: answered.right ? "" : "is-wrong" }, verdict), `: ${words}.${right} The result is open below. `, wayToResult());
      if (result) mark(answered, index, words);
    }

    function wayToResult() {
      if (!result) return "";
      result.id ||= `result-${facts.number}`;
      return element("a", { href: `#${result.id}` }, "To the result");
    }

    function mark(answered, index, words) {
      const chosen = facts.typed ? facts.bounds.findIndex(([low, high]) => low <= answered.said && answered.said <= high) : index;
      const verdict = answered.right ? ": ✓ as you said" : ": ✗ not as you said";
      result.classList.replace("course-neutral", answered.right ? "course-right" : "course-wrong");
      result.querySelector(".course-head").append(verdict);
      if (answered.right) return;
      const told = element("p", {}, element("strong", {}, "You said"), `: ${words}. `);
      told.insertAdjacentHTML("beforeend", facts.why[chosen] || ""); // the course's own text, from the page
      result.querySelector(".course-body > p").after(told);
      if (!facts.why[chosen]) result.querySelector("details")?.setAttribute("open", ""); // no idea of ours fits this number
    }

    // Who opens the fold skips the question; a search in the page, a link to its words or a printer may open it, too.
    fold.querySelector("summary").addEventListener("click", () => {
      if (fold.open || known[facts.number]) return;
      keep(facts.number, { skipped: true });
      setTimeout(show); // once it is open
    });
    show();
  };

  // ---- how far a reader is -----------------------------------------------------------------------------------------

  const scores = () => {
    for (const line of document.querySelectorAll(".prediction-score")) {
      const numbers = line.dataset.numbers.split(" ");
      const answers = numbers.map((number) => known[number]).filter((answer) => answer && !answer.skipped);
      const surprises = answers.filter((answer) => !answer.right).length;
      line.hidden = !numbers.some((number) => known[number]);
      line.textContent = `You predicted ${answers.length} of ${numbers.length}; ${surprises} surprised you. `;
      if (!line.hidden && line.closest("main article") && document.querySelector("[data-prediction]")) line.append(forget(numbers));
    }
  };

  const forget = (numbers) => element("button", {
    type: "button",
    onclick: () => {
      const others = Object.entries(read()).filter(([number]) => !numbers.includes(number));
      localStorage.setItem(KEPT, JSON.stringify(Object.fromEntries(others)));
      location.reload();
    },
  }, "Forget my answers");

  // ---- where a reader is -------------------------------------------------------------------------------------------

  // The contents mark the last heading above the upper third of the window, whatever is folded; at a page's end, its last.
  const follow = () => {
    const links = [...document.querySelectorAll(".page-toc a.nav-link[href^='#'], .bd-toc-nav a.nav-link[href^='#']")];
    const headings = links.map((link) => document.getElementById(decodeURIComponent(link.hash.slice(1))));
    let waiting = false;
    const mark = () => {
      waiting = false;
      const line = scrollY + innerHeight > document.documentElement.scrollHeight - 4 ? innerHeight : innerHeight / 3;
      const above = headings.map((heading) => Boolean(heading?.offsetParent) && heading.getBoundingClientRect().top < line);
      const here = above.lastIndexOf(true);
      links.forEach((link, place) => {
        link.classList.toggle("active", place === here);
        if (place === here) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      });
      const contents = links[here]?.closest(".bd-sidebar-secondary");
      if (!contents) return;
      const [link, box] = [links[here], contents].map((each) => each.getBoundingClientRect());
      if (link.top < box.top || link.bottom > box.bottom) contents.scrollTop += link.top - box.top - box.height / 2;
    };
    const soon = () => {
      if (!waiting) setTimeout(mark, 100); // after the theme, which marks what it sees
      waiting = true;
    };
    for (const event of ["scroll", "resize", "toggle"]) addEventListener(event, soon, { capture: true, passive: true });
    soon();
  };

  // The Tab key stops only at what can be scrolled.
  const stops = new ResizeObserver((seen) => {
    for (const { target } of seen) {
      if (target.scrollWidth > target.clientWidth) target.setAttribute("tabindex", 0);
      else target.removeAttribute("tabindex");
    }
  });

  // A button that copies, on code and commands; the browser allows it on https and on this machine.
  const copies = (pre) => {
    const copy = async () => {
      await navigator.clipboard.writeText(pre.textContent.trimEnd());
      made.textContent = "Copied";
      setTimeout(() => (made.textContent = "Copy"), 2000);
    };
    const made = element("button", { type: "button", class: "copy-code", onclick: copy, "aria-live": "polite" }, "Copy");
    pre.after(made);
  };

  // Several lines with gaps in them are a table.
  const hasColumns = (pre) => pre.textContent.split("\n").filter((line) => /\S {2,}\S/.test(line)).length > 2;

  // Paper shows everything, and is white.
  let theme = null;
  addEventListener("beforeprint", () => {
    theme = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
    for (const fold of document.querySelectorAll("article details:not([open])")) {
      fold.dataset.printed = "";
      fold.open = true;
    }
  });
  addEventListener("afterprint", () => {
    if (theme) document.documentElement.dataset.theme = theme;
    for (const fold of document.querySelectorAll("details[data-printed]")) {
      delete fold.dataset.printed;
      fold.open = false;
    }
  });

  // A search shows the section in which its words are, not the page's furniture, and leads there.
  const summary = (html, words) => {
    const article = new DOMParser().parseFromString(html, "text/html").querySelector(".bd-article");
    article?.querySelectorAll("script, style, nav, .headerlink, .toctree-wrapper, .onlyprint, .run-it").forEach((each) => each.remove());
    const has = (each) => [...words].every((word) => each.textContent.toLowerCase().includes(word.toLowerCase()));
    const found = [...(article?.querySelectorAll("section[id]") ?? [])].filter(has).at(0);
    if (!found) return null;
    const inner = [...found.querySelectorAll("section[id]")].find((each) => has(each) && !each.querySelector("section")) ?? found;
    const title = inner.querySelector("h1, h2, h3, h4, h5");
    const parts = [...inner.querySelectorAll("p, li, dt, dd")].filter((each) => !each.querySelector("p, li") && !each.closest(".cell_output"));
    const spoken = parts.map((each) => each.textContent).join(" ").replace(/\s+/g, " ");
    const all = inner.textContent.replace(title?.textContent ?? "", "").replace(/\s+/g, " ").trim();
    const text = spoken.toLowerCase().includes([...words][0]?.toLowerCase()) ? spoken : all;
    const at = Math.max(0, text.toLowerCase().indexOf([...words][0]?.toLowerCase()) - 80);
    const from = at && text.indexOf(" ", at) + 1;
    const shown = element("p", { class: "context" });
    if (inner !== found) shown.append(element("a", { href: `#${inner.id}` }, title.textContent), ": ");
    shown.append(`${from ? "... " : ""}${text.slice(from, from + 240)} ...`);
    queueMicrotask(() => { // once it stands below the page's title
      const way = shown.parentElement?.querySelector("a");
      if (!way) return;
      if (inner !== found) way.hash = inner.id;
      for (const link of shown.querySelectorAll("a")) link.href = way.href;
    });
    return shown;
  };
  if (typeof Search !== "undefined") Search.makeSearchSummary = summary;

  addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("[data-prediction]").forEach(arrange);
    scores();
    follow();
    if (navigator.clipboard) document.querySelectorAll("article .highlight > pre").forEach((pre) => pre.closest(".cell_output") || copies(pre));
    document.querySelectorAll(".cell_output pre").forEach((each) => each.classList.toggle("columns", hasColumns(each)));
    document.querySelectorAll("figure.drawn, .course-still, .formula, pre.columns").forEach((each) => stops.observe(each));
  });
})();
