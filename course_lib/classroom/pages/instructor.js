// The instructor's page: the current question and raised hands on top, the rest of the class in tabs.

import { act, count, element, follow, keep, percent, say, sentence, showJoining } from "./page.js";
import { askedNow, showAsked, showQuestions } from "./questions.js";
import { loading, showPlan, showSlides, showTime, showWonderings } from "./teach.js";

const DARKEST = 45; // maximum percent of color in a tile, so that its text stays readable
const MINUTE = 60_000;
const place = Object.fromEntries([...document.querySelectorAll("[id]")].map(each => [each.id, each]));
let snapshot = null;
let lesson = location.hash.match(/^#(\d\d)$/)?.[1] ?? ""; // the chosen lesson; "" follows the class

async function perform(action, what) {
  say(place.refused, await act(action, what));
}

function show(state) {
  snapshot = state;
  showTop(state);
  showAsked(place.asked, askedNow(state.questions), state, perform);
  place["nothing-asked"].hidden = askedNow(state.questions) !== null;
  showHands(place.hands, state.hands, perform);
  say(place["hands-count"], state.hands.length);
  place["no-hands"].hidden = state.hands.length > 0;
  const tries = state.quiet.map(each => `${each.name} (${each.number}, ${each.tries} times)`);
  say(place.quiet, tries.length ? `Keeps failing, no hand up: ${tries.join(", ")}.` : "");
  showWonderings(place.wonderings, state.wonderings, perform);
  place["no-wonderings"].hidden = state.wonderings.length > 0;
  showTime(place, state, perform);
  showRest();
}

function showTop(state) {
  say(place.title, state.class);
  document.title = state.hands.length ? `(${state.hands.length}) ${state.class}` : state.class;
  showJoining(state);
  say(place.here, state.here);
  say(place.learners, `of ${state.learners} who have joined`);
  place.slower.hidden = !state.slower;
  say(place.record, state.trouble);
  place.done.hidden = !state.done;
  say(place["done-count"], `Done: ${state.done} of ${state.here}`);
  place.off.hidden = !state.stage;
  say(place["slower-count"], `Slower, please: ${state.slower}`);
}

/** Show the selected lesson in the tabs. */
function showRest() {
  const shown = lesson || whereTheClassIs(snapshot);
  showLessons(shown);
  const of = each => each.number.split(".")[0] === shown;
  showQuestions(place.questions, snapshot.questions.filter(of), perform);
  showExercises(place.exercises, snapshot.exercises.filter(of), snapshot.learners);
  showSections(place.map, place.nobody, snapshot.lessons);
  showPlan(place.plan, shown, snapshot, perform);
  showSlides(place.slides, shown);
}

function showLessons(shown) {
  const buttons = [{ number: "", title: "Follow the class", sections: [] }, ...snapshot.lessons];
  keep(place.lessons, buttons, each => each.number, makeLessonButton, (button, each) => {
    const here = peopleIn(each);
    say(button, each.number ? `${each.number}${here ? ` · ${here} here` : ""}` : each.title);
    button.classList.toggle("shown", each.number === shown);
    button.setAttribute("aria-pressed", String(each.number === lesson));
  });
}

function makeLessonButton(each) {
  const choose = () => {
    lesson = each.number;
    showRest();
  };
  return element("button", { title: each.title, on: choose });
}

function peopleIn(each) {
  return each.sections.reduce((sum, section) => sum + section.here, 0);
}

/** The lesson that most desks are in. Phones are in no lesson: without desks, it is the lesson of the call or the question. */
function whereTheClassIs({ lessons, call, questions }) {
  const most = lessons.reduce((best, each) => (peopleIn(each) > peopleIn(best) ? each : best), lessons[0]);
  if (peopleIn(most)) return most.number;
  return call?.lesson ?? askedNow(questions)?.number.split(".")[0] ?? most.number;
}

// Raised hands, longest wait first, each with the cell that its learner has shown.

/** Update the raised hands. */
function showHands(place, hands, perform) {
  keep(place, hands, hand => hand.learner, hand => makeHand(hand, perform), showHand);
}

/** Update only the waiting times, which grow without news from the class. */
function showWaits(place, hands) {
  for (const item of place.children) {
    const hand = hands.find(each => String(each.learner) === item.dataset.key);
    if (hand) say(item.querySelector(".wait"), waited(hand.since));
  }
}

function makeHand(hand, perform) {
  const done = element("button", { on: () => perform("lower", { learner: hand.learner }) }, "Done");
  const name = element("bdi", { class: "name" });
  const line = element("p", {}, name, " ", element("span", { class: "wait quiet" }), done);
  const show = element("button", { on: () => perform("show", { learner: hand.learner }) }, "Show on projector, without the name");
  const cell = element("details", { hidden: "" }, element("summary", {}, "The cell"), element("pre", { tabindex: "0" }), show);
  return element("li", {}, line, element("p", { class: "where quiet" }), cell);
}

function showHand(item, hand) {
  say(item.querySelector(".name"), hand.name);
  item.querySelector("button").setAttribute("aria-label", `Done: ${hand.name}`);
  say(item.querySelector(".wait"), waited(hand.since));
  say(item.querySelector(".where"), [hand.lesson, hand.section].filter(Boolean).join(" · "));
  const cell = item.querySelector("details");
  if (cell.hidden && hand.source) cell.open = true; // it was just shown
  cell.hidden = !hand.source;
  say(cell.querySelector("pre"), hand.source ?? "");
}

function waited(since) {
  const minutes = Math.floor((Date.now() / 1000 - since) / 60);
  return minutes < 1 ? "just now" : `for ${minutes} min`;
}

// The exercises of a lesson: who has passed, who is trying, and how often each mistake is made.

/** Update the exercises. */
function showExercises(place, exercises, learners) {
  if (!exercises.length) return place.replaceChildren(element("p", { class: "quiet" }, "This lesson has no exercises."));
  keep(place, exercises, each => each.number, makeExercise, (card, each) => showExercise(card, each, learners));
}

function makeExercise(exercise) {
  const title = element("h3", {}, element("span", { class: "number" }, exercise.number), " ", exercise.title);
  const fills = ["passed", "trying"].map(kind => element("div", { class: `fill ${kind}` }));
  const track = element("div", { class: "track", "aria-hidden": "true" }, ...fills);
  const who = element("details", {}, element("summary", {}, "Who"), names("passed"), names("trying"));
  return element(
    "article", { class: "card exercise" },
    title, element("p", { class: "numbers" }), track, element("ul", { class: "mistakes" }), who,
  );
}

function names(kind) {
  return element("p", { class: kind }, element("b", {}, kind === "passed" ? "Passed: " : "Trying: "), list());
}

function list() {
  return element("span", { class: "list" });
}

function showExercise(card, exercise, learners) {
  const { passed, trying, mistakes } = exercise;
  say(card.querySelector(".numbers"), `${passed.length} passed, ${trying.length} trying, of ${count(learners, "learner")}`);
  card.querySelector(".fill.passed").style.width = `${percent(passed.length, learners)}%`;
  card.querySelector(".fill.trying").style.width = `${percent(trying.length, learners)}%`;
  card.querySelector("details").hidden = !passed.length && !trying.length;
  showNames(card.querySelector("p.passed .list"), passed);
  showNames(card.querySelector("p.trying .list"), trying);
  const most = [...mistakes].sort((one, other) => other.count - one.count);
  keep(card.querySelector(".mistakes"), most, mistakeKey, makeMistake, (item, each) => {
    say(item.querySelector(".count"), `${each.count} ×`);
  });
}

function mistakeKey(each) {
  return `${each.part}\n${each.mistake}`;
}

function makeMistake(each) {
  const words = each.mistake ? sentence(each.mistake) : [element("i", {}, "no known mistake")];
  const part = element("span", { class: "quiet" }, each.part ? ` (${each.part})` : "");
  return element("li", {}, element("b", { class: "count" }), element("span", {}, ...words, part));
}

function showNames(place, people) {
  if (place.dataset.names === people.join("\n")) return;
  place.dataset.names = people.join("\n");
  const apart = people.flatMap((name, index) => [index ? ", " : "", element("bdi", {}, name)]);
  place.replaceChildren(...(people.length ? apart : ["nobody"]));
}

// Where the class is: a row for each lesson, a tile for each section; the stronger its color, the more learners are there.

/** Update the map; lessons that nobody has visited are listed in one line. */
function showSections(map, rest, lessons) {
  const most = Math.max(...lessons.flatMap(lesson => lesson.sections.map(section => section.here)));
  const visited = lessons.filter(lesson => lesson.sections.some(section => section.been));
  keep(map, visited, each => each.number, makeRow, (row, lesson) => {
    keep(row.querySelector("ol"), lesson.sections, each => each.heading, makeTile, (tile, section) => {
      say(tile.querySelector(".here"), section.here);
      say(tile.querySelector(".been"), `${section.been} visited`);
      tile.style.setProperty("--share", `${(DARKEST * percent(section.here, most)) / 100}%`);
      tile.classList.toggle("empty", !section.here);
    });
  });
  const others = lessons.filter(lesson => !visited.includes(lesson)).map(lesson => lesson.number);
  say(rest, others.length ? `Nobody has been in ${others.join(", ")}.` : "");
}

function makeRow(lesson) {
  const title = element("h3", {}, element("span", { class: "number" }, lesson.number), " ", lesson.title);
  return element("section", { class: "lesson" }, title, element("ol", { class: "tiles" }));
}

function makeTile(section) {
  const here = element("b", { class: "here" });
  const numbers = element("span", {}, here, " here, ", element("span", { class: "been" }));
  return element("li", { class: "tile" }, element("span", { class: "heading", title: section.heading }, section.heading), numbers);
}

// Tabs as ARIA describes them: a click or the arrow keys choose one and show its panel.

/** Make a list of tabs work; `chosen` is called with the tab that was chosen. */
function makeTabs(list, chosen) {
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

makeTabs(document.querySelector("[role=tablist]"), tab => {
  place.lessons.hidden = tab.id === "tab-sections";
});
place.faster.addEventListener("click", () => perform("faster", {}));
place.fresh.addEventListener("click", () => perform("fresh", {}));
place.off.addEventListener("click", () => perform("show", {}));
loading.then(() => snapshot && show(snapshot));
follow(show, trouble => say(place.line, trouble));
setInterval(() => {
  if (!snapshot) return;
  showWaits(place.hands, snapshot.hands);
  showTime(place, snapshot, perform);
}, MINUTE / 12);
