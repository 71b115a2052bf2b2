// What the whole room sees: the current question, and never a name. Revealing it shows misconceptions and bars, which
// move from the first vote to the second. A learner's cell or question can be shown here, too.
// In the frame of the slides, `#06.2` selects the slide's question, asked or not, and there are buttons to ask it.

import { act, element, follow, isFramed, keep, percent, say, sentence } from "./page.js";
import { askedNow, LETTERS, makeActions, OTHER, showActions, total } from "./questions.js";

const place = Object.fromEntries([...document.querySelectorAll("[id]")].map(each => [each.id, each]));
const LARGEST = 6, SMALLEST = 4; // percent of the height; the last row cannot read less than 1/25
let ends = 0; // of the countdown, by this browser's clock
const NOT_ASKED = { answers: 0, open: false, discussed: false, revealed: false };
let drawn = "";
let latest = null;

/** Show a snapshot of the class. */
export function show(state) {
  latest = state;
  const found = state.questions.find(each => `#${each.number}` === location.hash) ?? askedNow(state.questions);
  const question = found && { ...found, asked: found.asked ?? NOT_ASKED };
  place.shown.hidden = !state.stage;
  place.question.hidden = Boolean(state.stage) || !question;
  place.welcome.hidden = Boolean(state.stage) || Boolean(question);
  const running = question && (question.asked.open || question.asked.discussed) && !question.asked.revealed;
  ends = running && question.asked.ends ? Date.now() + 1000 * (question.asked.ends - state.now) : 0;
  if (state.stage) showStage(state.stage);
  else if (question) showQuestion(question);
  showWelcome(state);
  showSide(state, !state.stage && question?.asked.shown ? question : null);
  if (isFramed) showBar(found);
  tick();
  const now = JSON.stringify([state.stage, question?.number, question && { ...question.asked, answers: 0 }, state.call]);
  if (now !== drawn) fit();
  drawn = now;
}

function showWelcome(state) {
  say(place.title, state.class);
  say(place.call, state.call ? `We are at ${state.call.lesson}: ${state.call.section}` : "");
  const address = state.address.split("#")[0];
  say(place.address, address);
  say(place.code, state.code);
  document.querySelector(".with-code").hidden = !state.code;
}

/** Show how to join, always in the corner, and above it how many have answered, are done, or are here. */
function showSide(state, question) {
  say(place["join-code"], state.code);
  say(place["join-address"], state.address.split("#")[0].replace(/^http:\/\//, ""));
  const { answers } = question?.asked ?? {};
  const [number, of, what] = question
    ? [answers, Math.max(answers, state.here), "answered"]
    : state.done ? [state.done, state.here, "done"] : [state.here, null, "here"];
  const big = of === null ? `${number}` : `${number} of ${of}`;
  const text = `${big} ${what}`;
  if (place.progress.textContent !== text) place.progress.replaceChildren(element("b", {}, big), ` ${what}`);
}

function showQuestion(question) {
  const { asked } = question;
  if (place.text.dataset.number !== question.number) {
    place.text.dataset.number = question.number;
    place.text.replaceChildren(...sentence(question.question));
    place.choices.replaceChildren();
  }
  const hidden = question.typed && !asked.revealed; // the choices' numbers would give the answer away
  place.choices.hidden = hidden;
  place.typed.hidden = !hidden;
  say(place.unit, question.unit ? ` (${question.unit})` : "");
  showChoices(question);
  const stage = asked.revealed || !asked.asked ? "" : asked.discussed ? "Discuss: find somebody who chose a different answer, and try to convince each other."
    : !asked.open ? "Closed." : asked.round === "after" ? "Vote again." : "";
  say(place.stage, stage);
  const right = question.choices.find(each => each.right);
  place.why.replaceChildren(...(asked.revealed ? sentence(right.why) : []));
}

function showChoices(question) {
  const { revealed } = question.asked;
  const rows = question.choices.map((choice, index) => ({ ...choice, index }));
  if (revealed && (question.before.other || question.after.other)) rows.push(OTHER);
  const make = row => makeRow(row, question.typed ? "" : LETTERS[row.index]);
  keep(place.choices, rows, row => row.index, make, (item, row) => {
    item.classList.toggle("is-right", revealed && row.right);
    item.classList.toggle("wide", revealed);
    say(item.querySelector(".believes"), !revealed ? "" : row.right ? "✓ right" : row.believes);
    const rounds = ["before", "after"].filter(round => total(question[round]));
    keep(item.querySelector(".bars"), revealed ? [row.index] : [], each => each, makeBar, bar => moveBar(bar, rounds.map(round => share(question[round], row.index))));
  });
}

function makeRow(row, letter) {
  const words = element("div", {}, element("span", { class: "says" }, ...sentence(row.says)), element("span", { class: "believes" }));
  return element("li", { class: "choice" }, element("span", { class: "letter" }, letter), words, element("div", { class: "bars" }));
}

function share(answers, index) {
  const said = index < 0 ? answers.other : answers.counts[index];
  return { said, percent: percent(said, total(answers)) };
}

function makeBar() {
  const parts = ["fill", "was"].map(name => element("div", { class: name }));
  const number = element("span", { class: "count" });
  return element("div", {}, number, element("div", { class: "moving", "aria-hidden": "true" }, ...parts));
}

/** Move a bar from the first vote to the last; a mark stays at the first. */
function moveBar(bar, shares) {
  const [first, last] = [shares[0], shares.at(-1)];
  if (!last) return;
  const fill = bar.querySelector(".fill"), was = bar.querySelector(".was");
  was.hidden = shares.length < 2;
  was.style.left = `${first.percent}%`;
  if (!fill.style.width) {
    fill.style.width = `${first.percent}%`;
    fill.getBoundingClientRect(); // draws it there before it moves
  }
  fill.style.width = `${last.percent}%`;
  say(bar.querySelector(".count"), shares.length < 2 ? `${last.said} · ${last.percent}%` : `${first.said} → ${last.said}`);
}

/** Show the buttons for the slide's question. */
function showBar(question) {
  if (place.actions.dataset.number !== question?.number) {
    place.actions.dataset.number = question?.number ?? "";
    place.actions.replaceChildren(...(question ? makeActions(question, perform) : []));
  }
  if (question) showActions(place.actions.children, question);
}

async function perform(action, what) {
  say(place.line, await act(action, what));
}

function showStage({ cell, text }) {
  say(place["shown-title"], cell ? "A cell from the class" : "A question from the class");
  const pieces = (cell ?? []).map(([kind, words]) => (kind ? element("span", { class: kind }, words) : words));
  place.cell.replaceChildren(...pieces);
  say(place.wondering, text ?? "");
}

/** Use the largest type that fits. If none does, drop the reason, which phones show, too, then most of the question. */
function fit() {
  for (const room of ["whole", "no-reason", "short", "shortest"]) {
    place.main.dataset.room = room;
    for (let size = LARGEST; size >= SMALLEST; size -= 0.25) {
      place.main.style.setProperty("--size", `${size}vh`);
      if (place.main.scrollHeight <= place.main.clientHeight) return;
    }
  }
}

function tick() {
  const left = Math.ceil((ends - Date.now()) / 1000);
  place.countdown.hidden = !ends;
  place.countdown.classList.toggle("late", left <= 0);
  say(place.countdown, left > 0 ? `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}` : "Time is up");
}

/** Let the keys and the outer buttons move through the slides around this page. */
function leadThroughSlides() {
  const press = key => parent.postMessage({ key }, location.origin);
  place.bar.hidden = false;
  place.back.addEventListener("click", () => press("ArrowLeft"));
  place.next.addEventListener("click", () => press("ArrowRight"));
  addEventListener("hashchange", () => latest && show(latest));
  addEventListener("keydown", event => {
    const isUsed = event.target.closest("select") || (event.target.closest("button") && [" ", "Enter"].includes(event.key));
    if (!isUsed && !event.ctrlKey && !event.metaKey && !event.altKey) press(event.key);
  });
}

if (isFramed) leadThroughSlides();
addEventListener("resize", fit);
setInterval(tick, 250);
follow(show, trouble => say(place.line, trouble));
