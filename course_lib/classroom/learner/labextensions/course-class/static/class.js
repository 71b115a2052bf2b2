// The class that a learner is in, at the top of the notebook: what the instructor asks, and a bar with buttons.
//
// A federated extension of JupyterLab, written by hand: JupyterLab calls `init` with the packages that it shares, and
// `get` for the plugin. The page never holds the learner's secret: it talks to the lab's server at course/class/.

"use strict";
(() => {
  const NAME = "course-class";
  const QUESTION = new URL("question.js", document.currentScript.src).href;
  const READ = 1000; // milliseconds that a section must stay in view to count as reached
  const MOST = 0.4; // of the notebook's height; a taller header scrolls, so that the notebook stays in view
  const PAUSE = 3000; // milliseconds before the next request if the server did not answer
  let shared, element, Question; // the last two come from question.js, which phones load, too

  // ---- small tools -------------------------------------------------------------------------------------------------

  const load = async (name) => {
    const versions = Object.values(shared[name]);
    return (await versions[versions.length - 1].get())();
  };

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

  // The last heading `## ...` above the middle of the visible part.
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

  // Whether the class may open the section that the instructor calls everyone to: yes, until a learner turns it off.
  const LED = "course-class-led";
  const isLed = () => localStorage.getItem(LED) !== "no";
  const setLed = (yes) => localStorage.setItem(LED, yes ? "yes" : "no");

  const plain = (heading) => heading.replace(/[`*]/g, "").split(/\s+/).join(" ").trim();

  const hasHeading = (cell, section) => cell.model.type === "markdown"
    && [...cell.model.sharedModel.getSource().matchAll(/^## (.+?) *$/gm)].some((found) => plain(found[1]) === section);

  // Open a lesson at a section. A heading may be in the lesson or in its exercises.
  const openSection = async (app, call) => {
    for (const folder of ["notebooks", "exercises"]) {
      const panel = await app.commands.execute("docmanager:open", { path: `${folder}/${call.name}.ipynb` }).catch(() => null);
      if (!panel || !panel.context) continue;
      await Promise.all([panel.context.ready, panel.revealed]);
      const index = panel.content.widgets.findIndex((cell) => hasHeading(cell, call.section));
      if (index < 0) continue;
      panel.content.activeCellIndex = index;
      await panel.content.scrollToItem(index, "start");
      return;
    }
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
      this.heard = element("p", { class: "course-class-heard", role: "status" });
      this.question = new Question({ answer: (asked, said) => this.answer(asked, said), say: (text) => this.say(text) });
      this.bar = element("div", { class: "course-class-bar", role: "group", "aria-label": "Your class" });
      this.inner = element("div", { class: "course-class-inner" }, this.bar, this.heard, this.question.node);
      this.widget = new lab.Widget({ node: element("div", { class: "course-class" }, this.inner) });
      this.widget.hide();
      panel.contentHeader.addWidget(this.widget);
      new ResizeObserver(() => this.fit()).observe(this.inner);
      this.reachedBefore = "";
      panel.content.node.addEventListener("scroll", () => this.look(), true);
      panel.context.ready.then(() => this.look());
    }

    // JupyterLab lays out its parts by their minimum heights, so we have to set ours.
    fit() {
      const height = this.widget.isHidden ? 0 : Math.min(this.inner.offsetHeight, this.panel.node.offsetHeight * MOST);
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
        const asked = news.state && news.state.asked && { ...news.state.asked, left: null }; // the projector counts down
        this.part("question", { asked, reached: news.reached }, () => this.question.show(asked));
        if (news.refused && news.refused.id === this.mine) this.say(news.refused.why);
      }
      if (joinedNow) this.look();
      this.fit();
    }

    // Redraw a part only if it has changed, and keep the focus where it was.
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
      const { stuck = false, line = 0, done = false, call = null } = news.state || {};
      const sign = news.unknown
        ? "This class no longer knows you: join again"
        : news.reached ? (news.state && news.state.trouble) || "connected" : "not connected; what you do is kept and sent later";
      const status = element("span", { class: "course-class-sign", "data-reached": String(news.reached) },
        element("span", { class: "course-class-dot", "aria-hidden": "true" }), `${news.class}: ${sign}`);
      const help = element("button", {
        "data-name": "stuck", "aria-pressed": String(stuck), type: "button",
        onclick: () => this.tell("stuck", { on: !stuck, ...place(this.panel) }),
      }, stuck ? (line ? `I am stuck (#${line} in line)` : "I am stuck (in line)") : "I am stuck");
      const slower = element("button", {
        "data-name": "slower", type: "button",
        onclick: () => { this.tell("slower"); this.say("“Slower, please” was sent to the instructor."); },
      }, "Slower, please");
      const ready = element("button", {
        "data-name": "done", "aria-pressed": String(done), type: "button", onclick: () => this.tell("done", { on: !done }),
      }, "Done");
      const cell = element("button", { "data-name": "cell", type: "button", onclick: () => this.showCell() }, "Show my cell");
      this.bar.replaceChildren(status, help, slower, ready, cell, ...(call ? this.drawCall(call) : []));
    }

    // Where the instructor has called everyone. A click goes there; learners who follow the class go without one.
    drawCall(call) {
      const go = element("button", { "data-name": "call", type: "button", onclick: () => this.lab.goTo(call) },
        `The class is at ${call.lesson}: ${call.section}`);
      const led = element("input", { type: "checkbox", "data-name": "led", onchange: () => setLed(led.checked) });
      led.checked = isLed();
      return [go, element("label", {}, led, " take me there automatically")];
    }

    async showCell() {
      const cell = this.panel.content.activeCell;
      const source = cell ? cell.model.sharedModel.getSource() : "";
      if (!source.trim()) return this.say("The selected cell is empty.");
      const body = new this.lab.Widget({ node: element("div", { class: "course-class-asking" },
        element("p", {}, "This sends the source of this cell to the instructor, who may show it to the class without your name:"),
        element("pre", { tabindex: "0", "aria-label": "The source of the cell" }, source)) });
      const { Dialog, showDialog } = this.lab;
      const buttons = [Dialog.cancelButton(), Dialog.okButton({ label: "Show it" })];
      const answer = await showDialog({ title: "Show my cell", body, buttons, defaultButton: 0 });
      if (!answer.button.accept) return;
      await this.tell("showed", { source: source.slice(0, 20000), ...place(this.panel) });
      this.say("The cell was sent to the instructor.");
    }

    // ---- the question ----------------------------------------------------------------------------------------------

    answer(asked, said) {
      this.tell("answered", { asked: asked.asked, said });
      const kept = this.news.reached ? "" : " It will be sent as soon as the class can be reached.";
      this.say(`You said ${said}. You can change it until the question is closed.${kept}`);
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
    let news = null, called = null;
    // A call from before this page was opened moves nobody; a new one does, if the learner follows the class.
    const follow = (call) => {
      const isNew = called !== null && call && call.call !== called;
      called = call ? call.call : called ?? "";
      if (isNew && isLed()) lab.goTo(call);
    };
    lab.goTo = (call) => openSection(app, call);
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
      if (news && news.state) follow(news.state.call);
    }));
  };

  const extension = async () => {
    ({ element, Question } = await import(QUESTION));
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
