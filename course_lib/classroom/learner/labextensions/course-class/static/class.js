// The class that a learner is in, at the top of the notebook: what the instructor asks, and a bar with three buttons.
//
// A federated extension of JupyterLab, written by hand: JupyterLab calls `init` with the packages that it shares, and
// `get` for the plugin. The page never holds the learner's secret: it speaks with the lab's server, course/class/.

"use strict";
(() => {
  const NAME = "course-class";
  const LETTERS = "abcdefgh";
  const READ = 1000; // milliseconds in which a section must stay in view to have been reached
  const PAUSE = 3000; // milliseconds before the server is asked again, if it did not answer
  let shared;

  // ---- small tools -------------------------------------------------------------------------------------------------

  const load = async (name) => {
    const versions = Object.values(shared[name]);
    return (await versions[versions.length - 1].get())();
  };

  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== false && value !== null) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children);
    return made;
  };

  // `code` and *emphasis*, as questions use them; everything is text, and nothing of it becomes markup.
  const marked = (text) =>
    String(text).split(/(`[^`]+`|\*[^*\s][^*]*\*)/).map((piece) => {
      if (/^`.+`$/s.test(piece)) return element("code", {}, piece.slice(1, -1));
      if (/^\*.+\*$/s.test(piece)) return element("em", {}, piece.slice(1, -1));
      return piece;
    });

  // ---- the lab's server --------------------------------------------------------------------------------------------

  class Server {
    constructor(services, settings) {
      this.services = services;
      this.settings = settings;
    }

    async request(path, init) {
      const address = `${this.settings.baseUrl}course/class/${path}`;
      const answer = await this.services.ServerConnection.makeRequest(address, init, this.settings);
      if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
      return answer.json();
    }

    tell(kind, facts = {}) {
      return this.request("tell", { method: "POST", body: JSON.stringify({ kind, ...facts }) });
    }

    async listen(hear) {
      let mark = "";
      for (;;) {
        try {
          const answer = await this.request(`news?after=${encodeURIComponent(mark)}`, { method: "GET" });
          mark = answer.mark;
          hear(answer.news);
        } catch (error) {
          hear(null);
          await new Promise((resolve) => setTimeout(resolve, PAUSE));
        }
      }
    }
  }

  // ---- where a learner is ------------------------------------------------------------------------------------------

  const lessonOf = (path) => (/(?:^|\/)(\d\d)_[^/]*\.ipynb$/.exec(path) || ["", ""])[1];

  // The last heading `## ...` above the middle of what is seen.
  const sectionOf = (panel) => {
    const view = panel.content.node.getBoundingClientRect();
    let section = "";
    for (const cell of panel.content.widgets) {
      if (cell.model.type !== "markdown" || !cell.node.isConnected) continue;
      const place = cell.node.getBoundingClientRect();
      if (place.height === 0 || place.top > view.top + view.height / 2) continue;
      const heading = /^## (.+?) *$/m.exec(cell.model.sharedModel.getSource());
      if (heading) section = heading[1];
    }
    return section;
  };

  const place = (panel) => ({ lesson: lessonOf(panel.context.path), section: sectionOf(panel) });

  // ---- what is shown above a notebook ------------------------------------------------------------------------------

  class Header {
    constructor(panel, server, lab) {
      this.panel = panel;
      this.server = server;
      this.lab = lab;
      this.news = null;
      this.shown = {};
      this.question = element("section", { class: "course-class-question", "aria-label": "The class is asked" });
      this.heard = element("p", { class: "course-class-heard", role: "status" });
      this.bar = element("div", { class: "course-class-bar", role: "group", "aria-label": "Your class" });
      this.inner = element("div", { class: "course-class-inner" }, this.bar, this.heard, this.question);
      this.widget = new lab.Widget({ node: element("div", { class: "course-class" }, this.inner) });
      this.widget.hide();
      panel.contentHeader.addWidget(this.widget);
      new ResizeObserver(() => this.fit()).observe(this.inner);
      this.reachedBefore = "";
      panel.content.node.addEventListener("scroll", () => this.look(), true);
      panel.context.ready.then(() => this.look());
    }

    // JupyterLab lays its parts out by their least heights: it has to be told ours.
    fit() {
      const height = this.widget.isHidden ? 0 : Math.min(this.inner.offsetHeight, this.panel.node.offsetHeight * 0.6);
      const least = `${Math.ceil(height)}px`;
      if (this.widget.node.style.minHeight === least) return;
      this.widget.node.style.minHeight = least;
      this.panel.contentHeader.fit();
      this.panel.fit();
    }

    look() {
      clearTimeout(this.looking);
      this.looking = setTimeout(() => {
        if (!this.news || !this.panel.isVisible) return;
        const here = place(this.panel);
        const key = `${here.lesson} ${here.section}`;
        if (!here.lesson || !here.section || key === this.reachedBefore) return;
        this.reachedBefore = key;
        this.server.tell("reached", here).catch(() => (this.reachedBefore = ""));
      }, READ);
    }

    show(news) {
      const joinedNow = !this.news && news;
      this.news = news;
      this.widget.setHidden(!news);
      if (news) {
        this.part("bar", { news: { ...news, state: { ...news.state, asked: null } } }, () => this.drawBar(news));
        const asked = news.state && news.state.asked;
        this.part("question", { asked, reached: news.reached }, () => this.drawQuestion(asked));
        if (news.refused && news.refused.id === this.mine) this.say(news.refused.why);
      }
      if (joinedNow) this.look();
      this.fit();
    }

    // Drawn again only if it has changed, and the focus stays where it was.
    part(name, what, draw) {
      const now = JSON.stringify(what);
      if (this.shown[name] === now) return;
      this.shown[name] = now;
      const focused = this.inner.contains(document.activeElement) && document.activeElement.dataset.name;
      draw();
      const again = focused && this.inner.querySelector(`[data-name="${focused}"]`);
      if (again && again !== document.activeElement) again.focus();
    }

    say(text) {
      this.heard.textContent = text;
    }

    async tell(kind, facts) {
      try {
        this.mine = (await this.server.tell(kind, facts)).id;
      } catch (error) {
        this.say("That did not reach the lab's server: try again.");
      }
    }

    // ---- the bar ---------------------------------------------------------------------------------------------------

    drawBar(news) {
      const { stuck = false, line = 0 } = news.state || {};
      const sign = news.unknown
        ? "This class does not know you any more: join it again"
        : news.reached ? (news.state && news.state.trouble) || "connected" : "not reached now; what you do is kept and sent later";
      const status = element("span", { class: "course-class-sign", "data-reached": String(news.reached) },
        element("span", { class: "course-class-dot", "aria-hidden": "true" }), `${news.class}: ${sign}`);
      const help = element("button", {
        "data-name": "stuck", "aria-pressed": String(stuck), type: "button",
        onclick: () => this.tell("stuck", { on: !stuck, ...place(this.panel) }),
      }, stuck ? (line ? `I am stuck (${line} in the line)` : "I am stuck (in the line)") : "I am stuck");
      const slower = element("button", {
        "data-name": "slower", type: "button",
        onclick: () => { this.tell("slower"); this.say("“Slower, please” was sent to the instructor."); },
      }, "Slower, please");
      const cell = element("button", { "data-name": "cell", type: "button", onclick: () => this.showCell() }, "Show my cell");
      this.bar.replaceChildren(status, help, slower, cell);
    }

    async showCell() {
      const cell = this.panel.content.activeCell;
      const source = cell ? cell.model.sharedModel.getSource() : "";
      if (!source.trim()) return this.say("The selected cell is empty.");
      const body = new this.lab.Widget({ node: element("div", { class: "course-class-asking" },
        element("p", {}, "This sends the source of this cell to the instructor:"),
        element("pre", { tabindex: "0", "aria-label": "The source of the cell" }, source)) });
      const { Dialog, showDialog } = this.lab;
      const buttons = [Dialog.cancelButton(), Dialog.okButton({ label: "Show it" })];
      const answer = await showDialog({ title: "Show my cell", body, buttons, defaultButton: 0 });
      if (!answer.button.accept) return;
      await this.tell("showed", { source: source.slice(0, 20000), ...place(this.panel) });
      this.say("The cell was sent to the instructor.");
    }

    // ---- the question ----------------------------------------------------------------------------------------------

    drawQuestion(asked) {
      this.question.hidden = !asked;
      if (!asked) return this.question.replaceChildren();
      const stage = `${asked.asked} ${asked.open} ${Boolean(asked.revealed)}`;
      if (this.stage !== stage) this.say("");
      this.stage = stage;
      if (this.putAway === asked.asked) {
        this.question.hidden = true;
        return this.question.replaceChildren();
      }
      const round = asked.round === "after" ? ", once more" : "";
      const parts = [
        element("h2", {}, `The class is asked${round}: ${asked.number}`),
        element("p", { class: "course-class-text" }, ...marked(asked.question)),
      ];
      if (asked.revealed) parts.push(this.outcome(asked));
      else if (asked.open) parts.push(asked.typed ? this.field(asked) : this.choices(asked));
      else parts.push(this.closed(asked));
      this.question.replaceChildren(...parts);
    }

    answer(asked, said) {
      this.tell("answered", { asked: asked.asked, said });
      const kept = this.news.reached ? "" : " It will be sent as soon as the class can be reached.";
      this.say(`You said ${said}. You can change it until the question is closed.${kept}`);
    }

    choices(asked) {
      const buttons = asked.choices.map((says, index) => {
        const letter = LETTERS[index];
        return element("button", {
          type: "button", "data-name": `choice-${letter}`, "aria-pressed": String(asked.said === letter),
          onclick: () => this.answer(asked, letter),
        }, element("span", { class: "course-class-letter" }, `${letter})`), " ", element("span", {}, ...marked(says)));
      });
      return element("div", { class: "course-class-choices", role: "group", "aria-label": "Choices" }, ...buttons);
    }

    field(asked) {
      const number = element("input", {
        type: "text", inputmode: "decimal", autocomplete: "off", "data-name": "number", "aria-label": "Your answer, a number",
        value: asked.said ?? false,
      });
      const take = (event) => {
        event.preventDefault();
        const said = Number(number.value.trim().replace(",", "."));
        if (!number.value.trim() || !Number.isFinite(said)) return this.say("A number, please.");
        this.answer(asked, said);
      };
      return element("form", { class: "course-class-field", onsubmit: take }, number, ` ${asked.unit} `,
        element("button", { type: "submit", "data-name": "send" }, "That is my answer"));
    }

    closed(asked) {
      const said = asked.said === null ? "You did not answer." : `You said ${asked.said}.`;
      return element("p", {}, `${said} The question is closed; what the class said comes next.`);
    }

    outcome(asked) {
      const { counts, other, right, believes, why } = asked.revealed;
      const all = counts.reduce((sum, count) => sum + count, other);
      const own = asked.typed ? -1 : LETTERS.indexOf(asked.said ?? "?");
      const rows = asked.choices.map((says, index) => this.row({
        says: asked.typed ? `${says} ${asked.unit}`.trim() : `${LETTERS[index]}) ${says}`,
        count: counts[index], all, isRight: index === right, isOwn: index === own || (asked.typed && String(asked.said) === says),
        believes: believes[index], why: why[index],
      }));
      if (other) rows.push(this.row({ says: "another number", count: other, all, believes: "", why: "" }));
      const many = `${all} ${all === 1 ? "answer" : "answers"}`;
      const ownAnswer = asked.said === null ? "" : ` · you said ${asked.said}`;
      const away = () => {
        this.putAway = asked.asked;
        this.drawQuestion(asked);
      };
      return element("div", {}, element("p", { class: "course-class-many" }, many + ownAnswer),
        element("ul", { class: "course-class-outcome" }, ...rows),
        element("button", { type: "button", "data-name": "away", onclick: away }, "Put this away"));
    }

    row({ says, count, all, isRight = false, isOwn = false, believes, why }) {
      const share = all ? (100 * count) / all : 0;
      const words = element("div", { class: "course-class-says" }, isRight ? "✓ " : "", ...marked(says),
        isRight ? element("strong", {}, " (right)") : "", isOwn ? element("strong", {}, " (yours)") : "");
      const bar = element("div", { class: "course-class-track", "aria-hidden": "true" },
        element("div", { class: "course-class-fill", style: `width: ${share}%` }));
      const told = element("div", { class: "course-class-believes" },
        ...(believes ? [element("em", {}, ...marked(believes), ".")] : []), " ", ...marked(why || ""));
      return element("li", { "data-right": String(isRight) },
        words, bar, element("span", { class: "course-class-count" }, String(count)), told);
    }
  }

  // ---- the plugin --------------------------------------------------------------------------------------------------

  const activate = (app, lab, services, tracker) => {
    const address = document.baseURI;
    const extensions = lab.PageConfig.getOption("fullLabextensionsUrl");
    const style = new URL(`${extensions}/${NAME}/static/class.css`, address).href;
    document.head.append(element("link", { rel: "stylesheet", href: style }));
    const server = new Server(services, app.serviceManager.serverSettings);
    const headers = new Set();
    let news = null;
    const add = (panel) => {
      const header = new Header(panel, server, lab);
      headers.add(header);
      panel.disposed.connect(() => headers.delete(header));
      header.show(news);
    };
    tracker.forEach(add);
    tracker.widgetAdded.connect((_, panel) => add(panel));
    tracker.currentChanged.connect(() => headers.forEach((header) => header.look()));
    app.restored.then(() => server.listen((heard) => {
      if (heard === null) news = news && { ...news, reached: false };
      else news = heard.joined ? heard : null;
      headers.forEach((header) => header.show(news));
    }));
  };

  const extension = async () => {
    const [notebook, widgets, apputils, coreutils, services] = await Promise.all(
      ["@jupyterlab/notebook", "@lumino/widgets", "@jupyterlab/apputils", "@jupyterlab/coreutils", "@jupyterlab/services"].map(load));
    const lab = { Widget: widgets.Widget, Dialog: apputils.Dialog, showDialog: apputils.showDialog, PageConfig: coreutils.PageConfig };
    const plugin = {
      id: `${NAME}:plugin`,
      description: "The class that a learner is in, at the top of the notebook",
      autoStart: true,
      requires: [notebook.INotebookTracker],
      activate: (app, tracker) => activate(app, lab, services, tracker),
    };
    return { __esModule: true, default: plugin };
  };

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB[NAME] = {
    init: (scope) => { shared = scope; },
    get: async () => { const module = await extension(); return () => module; },
  };
})();
