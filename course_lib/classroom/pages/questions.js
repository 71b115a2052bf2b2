// Questions: every choice with a bar for each round, and with a check mark or its misconception;
// and a card for each question, with the instructor's actions.

import { count, element, keep, percent, say, sentence } from "./page.js";

export const LETTERS = "abcdefgh";
const MOST_NAMES = 13; // if fewer are missing, they are named
const ROUNDS = ["before", "after"];
export const OTHER = { says: "another number", believes: "", right: false, index: -1 };

/** Update a list of choices: a bar for each round, which one is right, and the misconceptions behind the others. */
function showChoices(list, question, rounds) {
  const rows = question.choices.map((choice, index) => ({ ...choice, index }));
  list.classList.toggle("typed", question.typed);
  if (rounds.some(round => question[round].other)) rows.push(OTHER);
  const make = row => makeRow(row, question.typed ? "" : LETTERS[row.index]); // a typed number has no letter
  keep(list, rows, row => row.index, make, (item, row) => {
    item.classList.toggle("is-right", row.right);
    say(item.querySelector(".believes"), row.right ? "✓ right" : row.believes);
    const bars = item.querySelector(".bars");
    keep(bars, rounds, round => round, makeBar, (bar, round) => showBar(bar, question[round], row.index));
  });
}

function makeRow(row, name) {
  const words = element("span", { class: "says" }, ...sentence(row.says));
  const letter = element("span", { class: "letter" }, name);
  const belief = element("span", { class: "believes" });
  const bars = element("div", { class: "bars" });
  return element("li", { class: "choice" }, letter, element("div", { class: "words" }, words, belief), bars);
}

function makeBar(round) {
  const fill = element("div", { class: "fill" });
  const track = element("div", { class: "track", "aria-hidden": "true" }, fill);
  const number = element("span", { class: "count" });
  return element("div", { class: `bar ${round}` }, element("span", { class: "round" }, round), track, number);
}

function showBar(bar, answers, index) {
  const all = total(answers);
  const said = index < 0 ? answers.other : answers.counts[index];
  bar.querySelector(".fill").style.width = `${percent(said, all)}%`;
  say(bar.querySelector(".count"), all ? `${said} · ${percent(said, all)}%` : "–");
}

/** How many have answered in a round. */
export function total(answers) {
  return answers.counts.reduce((sum, each) => sum + each, answers.other);
}

/** The question that learners see at the top of their notebooks, or null. */
export function askedNow(questions) {
  return questions.find(question => question.asked?.shown) ?? null;
}

/** Show the current question, or none. */
export function showAsked(place, question, { here, missing }, perform) {
  const items = question ? [question] : [];
  keep(place, items, key, each => makeQuestion(each, perform), (card, each) => {
    showQuestion(card, each);
    say(card.querySelector(".progress"), progress(each.asked, here));
    const waiting = each.asked.open && missing.length && missing.length < MOST_NAMES ? `Waiting for ${missing.join(", ")}.` : "";
    say(card.querySelector(".missing"), waiting);
  });
}

/** Show all questions of a lesson. */
export function showQuestions(place, questions, perform) {
  keep(place, questions, key, each => makeQuestion(each, perform, "card"), showQuestion);
}

const key = question => question.number;

function progress(asked, here) {
  const round = asked.round === "after" ? "Asked again. " : "";
  const answers = `${count(asked.answers, "answer")}, ${here} here.`;
  const stage = asked.revealed ? "Revealed." : asked.open ? "Open:" : asked.discussed ? "Discussing:" : "Closed, not revealed:";
  return `${round}${stage} ${answers}`;
}

function makeQuestion(question, perform, kind = "") {
  const title = element("h3", {}, element("span", { class: "number" }, question.number), " ", ...sentence(question.question));
  const list = element("ol", { class: "choices" });
  const actions = element("p", { class: "actions" }, ...makeActions(question, perform));
  return element("article", { class: kind }, title, element("p", { class: "progress quiet" }), element("p", { class: "missing quiet" }), actions, list);
}

/** A button for each action on a question; `showActions` shows those that apply now. */
export function makeActions({ number }, perform) {
  return ACTIONS.map(([name, words, what]) => {
    const button = element("button", { "aria-label": `${words}: ${number}`, on: () => perform(name, what(button.question)) }, words);
    return button;
  });
}

/** Update the buttons of a question. */
export function showActions(buttons, question) {
  ACTIONS.forEach(([, , , fits], index) => {
    buttons[index].question = question;
    buttons[index].hidden = !fits(question);
  });
}

const seconds = () => Number(document.getElementById("seconds").value);
const number = round => question => ({ number: question.number, round, seconds: seconds() });
const asking = question => ({ asked: question.asked.asked });
const discussing = question => ({ ...asking(question), seconds: 2 * seconds() });

// Each action: its name, the text of its button, what it sends, and when the button is shown.
const ACTIONS = [
  ["ask", "Ask", number("before"), ({ asked }) => !asked || (!asked.open && !asked.answers)],
  ["close", "Close", asking, ({ asked }) => asked?.open],
  ["discuss", "Discuss", discussing, ({ asked }) => asked?.shown && !asked.revealed && !asked.discussed && asked.answers],
  ["reveal", "Reveal", asking, ({ asked }) => asked?.shown && !asked.revealed],
  ["ask", "Ask again", number("after"), ({ asked, before }) => !asked?.open && total(before)],
  ["close", "Put away", asking, ({ asked }) => asked?.shown && asked.revealed],
];

function showQuestion(card, question) {
  showActions(card.querySelectorAll(".actions button"), question);
  const list = card.querySelector(".choices");
  showChoices(list, question, ROUNDS.filter(round => total(question[round])));
}
