// "Run it here": puts the real widget in the place of its still picture. shell.js shows it, as in JupyterLab.

import shell from "./shell.js";

/** What anywidget gives to shell.js, over a widget that lives in the worker. */
class Model {
  #values;
  #post;
  #listeners = new Map();
  #waiting = false; // for the picture of the places that were sent last
  #newer = false; // whether the places have changed since then

  constructor(values, post) {
    this.#values = values;
    this.#post = post;
  }

  get(name) {
    return this.#values[name];
  }

  set(name, value) {
    this.#change({ [name]: value });
  }

  on(events, listener) {
    for (const event of events.split(" ")) {
      if (!this.#listeners.has(event)) this.#listeners.set(event, new Set());
      this.#listeners.get(event).add(listener);
    }
  }

  off(events, listener) {
    for (const event of events.split(" ")) this.#listeners.get(event)?.delete(listener);
  }

  /** Send the places; while Python draws, only the last ones wait: a slider is faster than any drawing. */
  save_changes() {
    this.#newer = true;
    if (!this.#waiting) this.#sendPlaces();
  }

  send(message) {
    if (this.#newer) this.#sendPlaces(); // first what was chosen, then what was pressed
    this.#post({ tell: message });
  }

  receive({ news, done }) {
    if (done) {
      this.#waiting = false;
      if (this.#newer) this.#sendPlaces();
    }
    if (!news) return;
    const { controls, places, ...drawn } = news;
    this.#change(this.#newer ? drawn : news); // controls that were moved since stay where they are
  }

  #sendPlaces() {
    this.#newer = false;
    this.#waiting = true;
    this.#post({ places: this.get("places") });
  }

  #change(values) {
    const changed = Object.keys(values).filter(
      (name) => JSON.stringify(values[name]) !== JSON.stringify(this.#values[name]),
    );
    Object.assign(this.#values, values);
    const listeners = changed.flatMap((name) => [...(this.#listeners.get(`change:${name}`) ?? [])]);
    new Set(listeners).forEach((listener) => listener());
  }
}

/** The page's one Python: it is loaded when the first widget is run. */
class Python {
  #worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  #receivers = [];
  #loading;

  /** `onload` is told how many bytes have arrived; `onfail`, why there will be no Python. */
  constructor(onload, onfail) {
    this.#loading = onload;
    this.#worker.onerror = (event) => onfail(event.message || "the browser could not start it");
    this.#worker.onmessage = ({ data }) => {
      if (data.failed) onfail(data.failed);
      else if (data.arrived) this.#loading(data.arrived);
      else this.#receivers[data.widget](data);
    };
  }

  /** Make an explorer. What it says first is what a model begins with; what follows goes to the model. */
  make(explorer, given) {
    const widget = this.#receivers.length;
    const post = (message) => this.#worker.postMessage({ widget, ...message });
    return new Promise((resolve, reject) => {
      let model = null;
      this.#receivers.push((data) => {
        if (model) return model.receive(data);
        if (!data.news?.controls) return reject(new Error(data.news?.said));
        model = new Model(data.news, post);
        resolve(model);
      });
      post({ make: explorer, arguments: given });
    });
  }
}

let python = null;
const waiting = new Set(); // those who are to be told what is loaded

function sayHowMuch(bytes) {
  for (const run of waiting) {
    const share = Math.min(99, Math.floor((100 * bytes) / Number(run.dataset.bytes)));
    say(run, share < 90 ? `Loading Python: ${share}%` : "Loaded. Starting Python, which can take half a minute ...");
  }
}

function sayWhyNot(reason) {
  for (const run of waiting) {
    say(run, `Python could not be loaded (${reason}). Load the page again, or run the lesson on your machine.`);
    run.querySelector(".course-run-bar button").removeAttribute("aria-disabled");
  }
  waiting.clear();
  python = null; // pressing the button again tries again
}

function say(run, words) {
  const said = run.querySelector(".course-run-bar [role=status]");
  if (said.textContent !== words) said.textContent = words;
}

async function start(run) {
  if (waiting.has(run)) return;
  waiting.add(run);
  const button = run.querySelector(".course-run-bar button");
  button.setAttribute("aria-disabled", "true");
  say(run, "Loading Python ...");
  python ??= new Python(sayHowMuch, sayWhyNot);
  try {
    const model = await python.make(run.dataset.explorer, JSON.parse(run.dataset.arguments));
    const place = document.createElement("div");
    const hadFocus = run.contains(document.activeElement);
    run.replaceChildren(place);
    shell.render({ model, el: place });
    if (hadFocus) place.querySelector("input, select").focus();
  } catch (error) {
    say(run, error.message);
  }
  waiting.delete(run);
}

for (const run of document.querySelectorAll(".course-run")) {
  const bar = run.querySelector(".course-run-bar");
  bar.querySelector("button").addEventListener("click", () => start(run));
  bar.hidden = false; // a page without JavaScript has the still picture alone
}
