// The instructor's page: what matters now on top (the asked question, hands), the rest of the class behind tabs.

import { element, keep, say, showJoining } from "./dom.js";
import { showExercises } from "./exercises.js";
import { showHands, showWaits } from "./hands.js";
import { act, follow } from "./live.js";
import { askedNow } from "./question.js";
import { showAsked, showQuestions } from "./questions.js";
import { showSections } from "./sections.js";
import { makeTabs } from "./tabs.js";

const MINUTE = 60_000;
const place = Object.fromEntries([...document.querySelectorAll("[id]")].map(each => [each.id, each]));
let snapshot = null;
let lesson = ""; // the one that was chosen; none: the one that most of the class is in

async function perform(action, what) {
  say(place.refused, await act(action, what));
}

function show(state) {
  snapshot = state;
  showTop(state);
  showAsked(place.asked, askedNow(state.questions), state.here, perform);
  place["nothing-asked"].hidden = askedNow(state.questions) !== null;
  showHands(place.hands, state.hands, perform);
  say(place["hands-count"], state.hands.length);
  place["no-hands"].hidden = state.hands.length > 0;
  showRest();
}

function showTop(state) {
  say(place.title, state.class);
  document.title = state.hands.length ? `(${state.hands.length}) ${state.class}` : state.class;
  showJoining(state);
  say(place.here, state.here);
  say(place.learners, `of ${state.learners} who have joined`);
  place.slower.hidden = !state.slower;
  say(place["slower-count"], `Slower, please: ${state.slower}`);
}

/** What stands behind the tabs, of the lesson that is looked at. */
function showRest() {
  const shown = lesson || whereMostAre(snapshot.lessons);
  showLessons(shown);
  const of = each => each.number.split(".")[0] === shown;
  showQuestions(place.questions, snapshot.questions.filter(of), perform);
  showExercises(place.exercises, snapshot.exercises.filter(of), snapshot.learners);
  showSections(place.map, place.nobody, snapshot.lessons);
}

function showLessons(shown) {
  const buttons = [{ number: "", title: "Follow the class", sections: [] }, ...snapshot.lessons];
  keep(place.lessons, buttons, each => each.number, makeLesson, (button, each) => {
    const here = peopleIn(each);
    say(button, each.number ? `${each.number}${here ? ` · ${here} here` : ""}` : each.title);
    button.classList.toggle("shown", each.number === shown);
    button.setAttribute("aria-pressed", String(each.number === lesson));
  });
}

function makeLesson(each) {
  const choose = () => {
    lesson = each.number;
    showRest();
  };
  return element("button", { title: each.title, on: choose });
}

function peopleIn(each) {
  return each.sections.reduce((sum, section) => sum + section.here, 0);
}

function whereMostAre(lessons) {
  const most = lessons.reduce((best, each) => (peopleIn(each) > peopleIn(best) ? each : best), lessons[0]);
  return most?.number ?? "";
}

makeTabs(document.querySelector("[role=tablist]"), tab => {
  place.lessons.hidden = tab.id === "tab-sections";
});
place.faster.addEventListener("click", () => perform("faster", {}));
follow(show, trouble => say(place.line, trouble));
setInterval(() => snapshot && showWaits(place.hands, snapshot.hands), MINUTE / 4);
