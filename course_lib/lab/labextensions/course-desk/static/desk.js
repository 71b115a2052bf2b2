// The course's desk in JupyterLab: a home page with the lessons, outcomes that stay folded until there is a prediction,
// help after a kernel restart, and what comes next at the end of a notebook.
//
// A federated extension, written by hand: JupyterLab calls `init` with the packages that it shares, and `get` for the
// plugin. Numbers come from the lab's server, course/home.

"use strict";
(() => {
  const NAME = "course-desk";
  const HOME = "course-desk-home";
  const ASKS = /^predict\(\s*["'](\d\d\.\d+)["']\s*\)\s*$/;
  const OURS = /^(notebooks|exercises)\/(\d\d)_[^/]*\.ipynb$/;
  const WONDERS = /\*Predict\*|^Before you run/m; // a question in the text, answered by the next cell
  const CHECKS = /^check\(\s*["'](\d\d\.\d+)["']/;
  const CHANGES = /\b(reveal|check|predict)\(/; // cells that may change the progress
  let shared;

  const load = async (name) => {
    const versions = Object.values(shared[name]);
    return (await versions[versions.length - 1].get())();
  };

  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  };

  const button = (words, onclick) => element("button", { type: "button", class: "course-desk-button", onclick }, words);
  const inView = (shown) => setTimeout(() => shown.scrollIntoView({ block: "nearest" }), 100); // once it is laid out
  // Keep output in view while it arrives piece by piece, as long as the reader stays there.
  const keepInView = (shown, isThere) => [100, 500, 1500].forEach((later) =>
    setTimeout(() => shown.isConnected && isThere() && shown.scrollIntoView({ block: "nearest" }), later));
  const textOf = (cell) => cell.model.sharedModel.getSource();
  const isCode = (cell) => cell.model.type === "code";
  const isHeading = (cell) => !isCode(cell) && /^#+ /m.test(textOf(cell));

  // ---- outcomes, folded --------------------------------------------------------------------------------------------

  // Cells from a prediction to the next heading are hidden until it is answered or skipped. They can still run, and
  // running any of them skips the prediction. Text that answers a question in the text above is hidden until the cell
  // between the two has run.
  class Folds {
    constructor(panel) {
      this.panel = panel;
      this.opened = new Set();
      this.hidden = new Map(); // cell -> what hides it: a prediction's number or a cell's id
      this.bars = new Map(); // number or id -> the bar shown in place of the hidden cells
      this.listening = new WeakSet();
      this.asked = null; // the prediction that ran last, until another cell becomes active
      this.ran = new Set(); // predictions that have run: if one runs again without an answer, the reader wants to go on
      panel.content.model.cells.changed.connect(() => this.later());
      panel.content.activeCellChanged.connect((_, cell) => setTimeout(() => !panel.isDisposed && this.pass(cell)));
      this.draw();
    }

    // Draw soon; if that unfolds the cells that prediction `follow` was hiding, go there.
    later(follow = null) {
      this.follow ??= follow;
      clearTimeout(this.waiting);
      this.waiting = setTimeout(() => {
        if (!this.panel.isDisposed) this.draw(this.follow);
        this.follow = null;
      });
    }

    open(number, follow = false) {
      if (!number) return;
      this.opened.add(number);
      this.draw(follow ? number : null);
    }

    // Keep folded cells from becoming active: a prediction that just ran stays active; arrow keys skip the fold.
    pass(cell) {
      const { content } = this.panel;
      if (content.activeCell !== cell) return;
      const number = this.hidden.get(cell);
      if (!number) {
        this.before = content.activeCellIndex;
        return;
      }
      const asks = content.widgets.indexOf(this.asks.get(number));
      const after = content.widgets.findIndex((other, place) => place > asks && !this.hidden.has(other));
      const stays = this.asked === number || this.before > asks || after < 0;
      this.asked = null;
      this.activate(content.widgets[stays ? asks : after]);
    }

    // A cell is about to run; `number` is its prediction's, if it asks one.
    runs(number) {
      this.asked = number && !this.ran.has(number) ? number : null;
      if (number) this.ran.add(number);
    }

    // A cell has run, and so the text below it unfolds: go on there, if the reader was led past it. What the cell shows
    // to play with stays in view.
    told(cell) {
      const { content } = this.panel;
      const place = content.widgets.indexOf(cell);
      const past = content.widgets.slice(place + 1, content.activeCellIndex);
      const wasLedPast = past.length > 0 && past.every((other) => this.hidden.get(other) === cell.model.id);
      this.later(wasLedPast ? cell.model.id : null);
      if (!wasLedPast) return;
      setTimeout(() => cell.node.querySelector(".course-widget") && content.activeCellIndex === place + 1 && cell.node.scrollIntoView(), 1000);
    }

    activate(cell) {
      const { content } = this.panel;
      content.activeCellIndex = content.widgets.indexOf(cell);
      content.deselectAll();
      content.mode = "command";
      cell.node.scrollIntoView({ block: "nearest" });
    }

    // If the reader has not left a cell, or only through Shift+Enter, keep it active, and in view down to its end.
    stay(cell) {
      const { content } = this.panel;
      const place = content.widgets.indexOf(cell);
      if (![place, place + 1].includes(content.activeCellIndex)) return;
      this.activate(cell);
      keepInView(cell.node, () => content.activeCell === cell);
    }

    draw(follow = null) {
      const before = this.hidden;
      const hidden = new Map();
      const bars = new Map();
      let number = null;
      const cells = this.panel.content.widgets;
      cells.forEach((cell, place) => {
        if (isHeading(cell)) number = null;
        if (number) return void hidden.set(cell, number);
        for (const told of this.tells(cells, place)) {
          hidden.set(told, cell.model.id);
          bars.set(cell.model.id, cell);
        }
        const asks = isCode(cell) && ASKS.exec(textOf(cell).trim());
        if (!asks) return;
        this.listen(cell);
        if (this.isOpen(asks[1], cell, cells.slice(place + 1))) return;
        number = asks[1];
        bars.set(number, cell);
      });
      for (const cell of this.hidden.keys()) if (!hidden.has(cell) && !cell.isDisposed) cell.setHidden(false);
      for (const cell of hidden.keys()) cell.setHidden(true);
      this.hidden = hidden;
      this.asks = bars;
      for (const [name, bar] of this.bars) if (!bars.has(name)) bar.remove();
      this.bars = new Map([...bars].map(([name, cell]) => [name, this.bar(name, cell)]));
      const unfolded = follow && cells.find((cell) => before.get(cell) === follow && !hidden.has(cell));
      if (!unfolded) return;
      this.activate(unfolded);
      this.panel.content.activate(); // the button is gone, and the keyboard focus with it
    }

    // The text after a code cell that answers a question before it, unless the cell has run.
    tells(cells, place) {
      const cell = cells[place];
      const wonders = place > 0 && isCode(cell) && !isCode(cells[place - 1]) && WONDERS.test(textOf(cells[place - 1]));
      if (!wonders || cell.model.executionCount || this.opened.has(cell.model.id)) return [];
      const until = cells.findIndex((other, after) => after > place && (isCode(other) || isHeading(other)));
      return cells.slice(place + 1, until < 0 ? cells.length : until);
    }

    bar(number, cell) {
      const asks = ASKS.test(textOf(cell).trim());
      const failed = isCode(cell) && cell.model.outputs.toJSON().some((output) => output.output_type === "error");
      const run = cell.model.executionCount && !failed ? "Answer above (press Tab to get there)" : "Run the cell above, then answer";
      const words = asks ? `${run}, or skip: the rest of this section stays folded until then. ` : "The rest stays folded until the cell has run. ";
      const bar = this.bars.get(number) || element("div", { class: "course-desk-fold", role: "group", "aria-label": asks ? `Outcome of ${number}` : "What comes after" },
        element("span"), button(asks ? "Skip: show it" : "Show it", () => this.open(number, true)));
      if (bar.firstChild.textContent !== words) bar.firstChild.textContent = words;
      if (bar.parentElement !== cell.node) cell.node.append(bar);
      return bar;
    }

    // Whether an answer is on the page, or one of the hidden cells has run before or is running.
    isOpen(number, asks, others) {
      if (this.opened.has(number)) return true;
      const until = others.findIndex(isHeading);
      const after = until < 0 ? others : others.slice(0, until);
      const answered = JSON.stringify(asks.model.outputs.toJSON()).includes("You said");
      return answered || after.some((cell) => isCode(cell) && (cell.model.executionCount || cell.model.executionState === "running"));
    }

    listen(cell) {
      if (this.listening.has(cell)) return;
      this.listening.add(cell);
      cell.model.outputs.changed.connect(() => {
        const isThere = () => this.panel.content.activeCell === cell;
        this.later(isThere() ? ASKS.exec(textOf(cell).trim())?.[1] : null);
        const fold = cell.node.querySelector(".course-desk-fold"); // below the choices, which arrive one by one
        if (fold) keepInView(fold, isThere);
      });
    }
  }

  // ---- new kernels -------------------------------------------------------------------------------------------------

  // Which cells the current kernel has run: a missing name may be defined in a cell above that has not run yet.
  class Kernel {
    constructor(panel, commands, folds) {
      this.panel = panel;
      this.commands = commands;
      this.folds = folds;
      this.run = new WeakSet();
      panel.sessionContext.statusChanged.connect((_, status) => {
        if (/restarting|starting/.test(status)) this.run = new WeakSet();
      });
    }

    ran(cell, error) {
      this.run.add(cell);
      cell.node.querySelector(".course-desk-new")?.remove();
      if (!error || error.errorName !== "NameError") return;
      const cells = this.panel.content.widgets;
      const missed = cells.slice(0, cells.indexOf(cell)).some((above) => isCode(above) && textOf(above).trim() && !this.run.has(above));
      if (!missed) return;
      const offer = this.offer(cell);
      cell.node.insertBefore(offer, cell.node.querySelector(":scope > :is(.course-desk-fold, .course-desk-help, .course-desk-end)"));
      inView(offer);
    }

    offer(cell) {
      const { content } = this.panel;
      const runAt = (command) => {
        this.folds.activate(cell);
        return this.commands.execute(command);
      };
      const again = async () => {
        const above = content.widgets.slice(0, content.widgets.indexOf(cell)).filter((other) => isCode(other) && textOf(other).trim());
        offered.replaceChildren(`Running ${above.length} cells above, then this one…`);
        content.activate(); // the button is gone, and the keyboard focus with it
        await runAt("notebook:run-all-above");
        await runAt("notebook:run-cell");
        this.folds.activate(cell);
        keepInView(cell.node, () => content.activeCell === cell);
      };
      const offered = element("div", { class: "course-desk-new", role: "alert" },
        "This kernel is new, and cells above have not run in it. ", button("Run everything above", again));
      return offered;
    }
  }

  // ---- help below a check, and what comes next once it has passed ---------------------------------------------------

  class Help {
    constructor(panel, desk) {
      this.panel = panel;
      this.desk = desk;
      this.bars = new Map(); // cell -> its bar
      panel.content.model.cells.changed.connect(() => setTimeout(() => !panel.isDisposed && this.draw()));
      this.draw();
    }

    draw() {
      for (const cell of this.panel.content.widgets) {
        const checks = isCode(cell) && CHECKS.exec(textOf(cell));
        if (!checks || this.bars.has(cell)) continue;
        const place = element("div", { role: "status" });
        const ask = (call) => () => this.ask(`${call}("${checks[1]}")`, place);
        const next = element("span");
        const bar = element("div", { class: "course-desk-help", role: "group", "aria-label": `Help with ${checks[1]}` },
          place, button("Hint", ask("hint")), button("Our answer", ask("solution")), next);
        this.bars.set(cell, { bar, place, next, number: checks[1] });
        cell.node.append(bar);
      }
    }

    // The kernel answers with one of the course's boxes.
    ask(call, place) {
      const kernel = this.panel.sessionContext.session?.kernel;
      if (!kernel) return void (place.textContent = "There is no kernel: choose Restart Kernel in the Kernel menu.");
      const request = kernel.requestExecute({ code: `import course_lib.checks\ncourse_lib.checks.${call}`, store_history: false });
      request.onIOPub = ({ header, content }) => {
        if (header.msg_type === "display_data") place.innerHTML = content.data["text/html"];
        if (header.msg_type === "error") place.textContent = `${content.ename}: ${content.evalue}`;
        inView(place.parentElement);
      };
    }

    passed(cell) {
      return JSON.stringify(cell.model.outputs.toJSON()).includes(`✓ ${this.bars.get(cell)?.number} `);
    }

    // Once the exercise has passed, the hints are no longer needed.
    next(cell) {
      const known = this.bars.get(cell);
      const lesson = this.desk.known?.lessons.find(({ number }) => known && known.number.startsWith(number));
      if (!lesson) return;
      const passed = this.passed(cell);
      if (passed) known.place.replaceChildren();
      const after = this.desk.after(lesson, this.panel);
      known.next.replaceChildren(...(passed && after ? ["Next: ", button(after.words, () => this.desk.go(after))] : []));
    }
  }

  // ---- home --------------------------------------------------------------------------------------------------------

  class Desk {
    constructor(app, lab, tracker) {
      Object.assign(this, { app, lab, tracker });
      this.ends = new Map(); // panel -> the card at its end
      this.panels = new Map(); // a notebook's content -> its folds, kernel and help
      this.page = element("div", { class: "course-desk-home", tabindex: "-1" });
    }

    async refresh() {
      const { serverSettings } = this.app.serviceManager;
      const asked = this.lab.ServerConnection.makeRequest(`${serverSettings.baseUrl}course/home`, {}, serverSettings);
      const answer = await asked.catch(() => ({ ok: false }));
      if (!answer.ok) return; // keep what is shown
      this.known = await answer.json();
      this.drawHome();
      for (const [panel, card] of this.ends) this.drawEnd(panel, card);
    }

    async go({ path, fragment }) {
      const panel = await this.app.commands.execute("docmanager:open", { path });
      await panel?.context?.ready;
      if (fragment) panel?.setFragment?.(fragment);
      const place = panel?.content?.widgets?.findIndex((cell) => fragment === `#cell-id=${cell.model.id}`);
      if (place >= 0) panel.content.activeCellIndex = place;
      panel?.content?.activate(); // moves the keyboard focus away from the button
      if (fragment) await this.importFirst(panel);
    }

    // A check and a prediction need the names that the first cell of their notebook imports.
    async importFirst({ content, sessionContext }) {
      const first = content.widgets.find(isCode);
      if (!first || this.panels.get(content)?.kernel.run.has(first) || !/^(import|from) /m.test(textOf(first))) return;
      await sessionContext.ready;
      await this.lab.NotebookActions.runCells(content, [first], sessionContext);
    }

    // The home page is always there, as the first tab.
    add() {
      const content = new this.lab.Widget({ node: this.page });
      this.widget = new this.lab.MainAreaWidget({ content });
      this.widget.id = HOME;
      this.widget.title.label = "Home";
      this.app.shell.add(this.widget, "main", { mode: "tab-before", activate: false });
      this.widget.title.closable = false;
      return this.refresh();
    }

    show() {
      this.app.shell.activateById(this.widget.id);
      return this.refresh();
    }

    drawHome() {
      const { lessons, begun, next, predicted, passed } = this.known;
      const first = lessons[0];
      const way = begun && next ? button(`Continue: ${next.words}`, () => this.go(next))
        : first ? button("Start: lesson 00", () => this.go({ path: first.path })) : "";
      this.page.replaceChildren(
        element("h1", {}, "Training an LSTM on many GPUs"),
        element("p", {}, "Run real ranks on this machine, predict what they will show, and see whether you were right. A cluster runs the same functions."),
        element("p", {}, way),
        element("p", { class: "course-desk-bars" }, this.bar("predictions made", predicted), this.bar("exercises passed", passed)),
        element("ul", { class: "course-desk-cards" }, ...lessons.map((lesson) => this.card(lesson))),
      );
    }

    bar(words, [done, all]) {
      const label = `${done} of ${all} ${words}`;
      return element("span", {}, element("progress", { max: Math.max(all, 1), value: done, "aria-label": label }), ` ${label}`);
    }

    card(lesson) {
      const open = (event) => {
        event.preventDefault();
        this.go({ path: lesson.path });
      };
      const exercise = (event) => {
        event.preventDefault();
        this.go({ path: lesson.exercises });
      };
      const words = `Exercises ${lesson.number}`;
      const practice = [lesson.path, ""].includes(lesson.exercises) ? [] : [" · ", element("a", { href: "#", onclick: exercise }, words)];
      const made = element("li");
      made.insertAdjacentHTML("afterbegin", lesson.picture); // the course's own drawing
      made.append(element("div", {},
        element("h2", {}, element("a", { href: "#", onclick: open }, `${lesson.number} · ${lesson.title}`)),
        element("p", {}, `${lesson.minutes} minutes`, ...practice),
        ...(lesson.begun ? [element("p", { class: "course-desk-done" }, this.done(lesson))] : [])));
      return made;
    }

    done({ predicted, surprised, passed }) {
      const surprises = predicted[0] ? `, ${surprised} surprised you` : "";
      const guessed = predicted[1] ? `${predicted[0]} of ${predicted[1]} predicted${surprises}` : "";
      return [guessed, passed[1] ? `${passed[0]} of ${passed[1]} exercises passed` : ""].filter(Boolean).join("; ");
    }

    // ---- what comes next, below the last cell ----------------------------------------------------------------------

    addEnd(panel) {
      const card = element("div", { class: "course-desk-end", role: "group", "aria-label": "What comes next" });
      this.ends.set(panel, card);
      panel.disposed.connect(() => this.ends.delete(panel));
      panel.content.model.cells.changed.connect(() => setTimeout(() => this.drawEnd(panel, card)));
      if (this.known) this.drawEnd(panel, card);
    }

    // Below the last cell, show this card instead of a new cell.
    toEnd(content) {
      const last = content.widgets.at(-1);
      const card = last.node.querySelector(":scope > .course-desk-end");
      if (!card || content.activeCell !== last) return;
      card.querySelector("button").focus({ preventScroll: true });
      keepInView(card, () => content.activeCell === last);
    }

    // The next step of a lesson, or its next exercise if this is an exercise notebook; then the next lesson.
    after(lesson, { context: { path } }) {
      const follows = this.known.lessons[this.known.lessons.indexOf(lesson) + 1];
      return (path.startsWith("exercises/") ? lesson.exercise : lesson.next) || (follows && { words: `lesson ${follows.number}, ${follows.title}`, path: follows.path });
    }

    drawEnd(panel, card) {
      if (panel.isDisposed || !this.known) return;
      const ours = OURS.exec(panel.context.path);
      const place = this.known.lessons.findIndex(({ number }) => ours && number === ours[2]);
      const lesson = this.known.lessons[place];
      if (!lesson) return card.remove();
      const begins = panel.content.widgets.findLast(isHeading);
      const after = this.after(lesson, panel);
      const way = after?.fragment && after.fragment === `#cell-id=${begins?.model.id}` ? null : after; // the reader is there
      const { exercise } = lesson;
      const practice = ours[1] === "notebooks" && exercise && exercise.words !== way?.words ? [button(exercise.words, () => this.go(exercise))] : [];
      card.replaceChildren(element("p", {}, `Lesson ${lesson.number}: ${this.done(lesson)}.`),
        element("p", {}, ...(way ? ["Next: ", button(way.words, () => this.go(way))] : []), ...practice, button("Home", () => this.show())));
      const last = panel.content.widgets.at(-1);
      if (last && card.parentElement !== last.node) last.node.append(card);
    }
  }

  // ---- the plugin --------------------------------------------------------------------------------------------------

  // The tab's label stays the file's name: changing it would rename the file.
  const name = (panel) => {
    const [, folder, number] = OURS.exec(panel.context.path);
    panel.title.dataset = { ...panel.title.dataset, course: `${folder === "notebooks" ? "Lesson" : "Exercises"} ${number}` };
  };

  // The home page has no table of contents, so the left side collapses, and comes back with a notebook. In a narrow
  // window, it stays collapsed.
  const sideOf = (shell) => {
    let comesBack = window.innerWidth >= 1000;
    let chosen = !shell.leftCollapsed;
    const fit = () => {
      const home = shell.currentWidget?.id === HOME;
      if (home && !shell.leftCollapsed) {
        shell.collapseLeft();
        chosen = true;
        comesBack = window.innerWidth >= 1000;
      } else if (!home && shell.currentWidget && comesBack) {
        if (chosen) shell.expandLeft();
        else shell.activateById("table-of-contents"); // we no longer know what was collapsed when the page was loaded
        comesBack = false;
      }
    };
    if (!comesBack) shell.collapseLeft();
    shell.currentChanged.connect(fit);
    fit();
  };

  const activate = (app, lab, tracker) => {
    const extensions = lab.PageConfig.getOption("fullLabextensionsUrl");
    const style = new URL(`${extensions}/${NAME}/static/desk.css`, document.baseURI).href;
    document.head.append(element("link", { rel: "stylesheet", href: style }));
    const desk = new Desk(app, lab, tracker);
    const { panels } = desk;
    const add = async (panel) => {
      if (!OURS.test(panel.context.path)) return;
      name(panel);
      await panel.context.ready;
      if (panel.isDisposed) return;
      const folds = new Folds(panel);
      panels.set(panel.content, { folds, kernel: new Kernel(panel, app.commands, folds), help: new Help(panel, desk) });
      panel.disposed.connect(() => panels.delete(panel.content));
      desk.addEnd(panel);
    };
    tracker.forEach(add);
    tracker.widgetAdded.connect((_, panel) => add(panel));
    const { runAndAdvance, run } = lab.NotebookActions;
    lab.NotebookActions.runAndAdvance = async (notebook, ...others) => {
      const last = notebook.widgets.at(-1);
      if (!panels.has(notebook) || notebook.activeCell !== last) return runAndAdvance(notebook, ...others);
      const done = await run(notebook, ...others);
      if (isCode(last)) inView(last.node);
      else setTimeout(() => desk.toEnd(notebook), 100); // the notebook takes the focus first
      return done;
    };
    lab.NotebookActions.executionScheduled.connect((_, { notebook, cell }) => {
      const folds = panels.get(notebook)?.folds;
      folds?.open(folds.hidden.get(cell));
      folds?.runs((ASKS.exec(textOf(cell).trim()) || [])[1]);
    });
    lab.NotebookActions.executed.connect((_, { notebook, cell, success, error }) => {
      panels.get(notebook)?.kernel.ran(cell, success ? null : error);
      panels.get(notebook)?.folds.told(cell);
      if (panels.has(notebook) && CHECKS.test(textOf(cell))) panels.get(notebook).folds.stay(cell);
      if (panels.has(notebook) && CHANGES.test(textOf(cell))) desk.refresh().then(() => panels.get(notebook)?.help.next(cell));
    });
    app.commands.addCommand("course:home", { label: "Course home", execute: () => desk.show() });
    app.restored.then(() => sideOf(app.shell));
    app.restored.then(() => desk.add()).then(() => /\/tree\//.test(location.pathname) || desk.show());
  };

  const extension = async () => {
    const names = ["@jupyterlab/notebook", "@lumino/widgets", "@jupyterlab/apputils", "@jupyterlab/coreutils", "@jupyterlab/services"];
    const [notebook, widgets, apputils, coreutils, services] = await Promise.all(names.map(load));
    const lab = { ...widgets, ...apputils, ...coreutils, ...services, ...notebook };
    const plugin = {
      id: `${NAME}:plugin`,
      autoStart: true,
      requires: [notebook.INotebookTracker],
      activate: (app, tracker) => activate(app, lab, tracker),
    };
    return { __esModule: true, default: plugin };
  };

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB[NAME] = {
    init: (scope) => { shared = scope; },
    get: async () => { const module = await extension(); return () => module; },
  };
})();
