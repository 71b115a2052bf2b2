// A question with a bar for every choice: before above after, the right one marked, the misconception beside it.

import { element, keep, percent, say, sentence } from "./dom.js";

const LETTERS = "abcdefgh";
const ROUNDS = ["before", "after"];
const OTHER = { says: "another number", believes: "", right: false, index: -1 };

/** Bring a list of choices up to date: a bar for each of the rounds; `believes`: what is wrong, and what is right. */
export function showChoices(list, question, { rounds = ROUNDS, believes = true } = {}) {
  const rows = question.choices.map((choice, index) => ({ ...choice, index }));
  list.classList.toggle("typed", question.typed);
  if (rounds.some(round => question[round].other)) rows.push(OTHER);
  const make = row => makeRow(row, question.typed ? "" : LETTERS[row.index]); // a number is typed, and has no letter
  keep(list, rows, row => row.index, make, (item, row) => {
    item.classList.toggle("is-right", believes && row.right);
    const belief = believes ? (row.right ? "✓ right" : row.believes) : "";
    say(item.querySelector(".believes"), belief);
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
