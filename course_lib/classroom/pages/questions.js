// The questions of a lesson, and the one that the class is asked, with what can be done about them.

import { count, element, keep, say, sentence } from "./dom.js";
import { showChoices, total } from "./question.js";

/** The question that is asked, or none. */
export function showAsked(place, question, here, perform) {
  const items = question ? [question] : [];
  keep(place, items, key, each => makeQuestion(each, perform), (card, each) => {
    showQuestion(card, each);
    say(card.querySelector(".progress"), progress(each.asked, here));
  });
}

/** All questions of a lesson. */
export function showQuestions(place, questions, perform) {
  keep(place, questions, key, each => makeQuestion(each, perform, "card"), showQuestion);
}

const key = question => question.number;

function progress(asked, here) {
  const round = asked.round === "after" ? "Asked again. " : "";
  const answers = `${count(asked.answers, "answer")}, ${here} here.`;
  const stage = asked.revealed ? "Revealed." : asked.open ? "Open:" : "Closed, not revealed:";
  return `${round}${stage} ${answers}`;
}

function makeQuestion(question, perform, kind = "") {
  const title = element("h3", {}, element("span", { class: "number" }, question.number), " ", ...sentence(question.question));
  const list = element("ol", { class: "choices" });
  const actions = element("p", { class: "actions" });
  for (const [name, words, what] of ACTIONS) {
    const on = () => perform(name, what(card.question));
    const button = element("button", { "aria-label": `${words}: ${question.number}`, on }, words);
    actions.append(button);
  }
  const projector = { href: "projector", target: "projector", "aria-label": `Show on projector: ${question.number}` };
  actions.append(element("a", projector, "Show on projector"));
  const card = element("article", { class: kind }, title, element("p", { class: "progress quiet" }), actions, list);
  return card;
}

const number = round => question => ({ number: question.number, round });
const asking = question => ({ asked: question.asked.asked });

// What may be done, the words on its button, what is sent, and when the button is there.
const ACTIONS = [
  ["ask", "Ask", number("before"), ({ asked }) => !asked || (!asked.open && !asked.answers)],
  ["close", "Close", asking, ({ asked }) => asked?.open],
  ["reveal", "Reveal", asking, ({ asked }) => asked?.shown && !asked.revealed],
  ["ask", "Ask again after", number("after"), ({ asked, before }) => !asked?.open && total(before)],
  ["close", "Put away", asking, ({ asked }) => asked?.shown && asked.revealed],
];

function showQuestion(card, question) {
  card.question = question;
  const buttons = card.querySelectorAll(".actions button");
  ACTIONS.forEach(([, , , fits], index) => (buttons[index].hidden = !fits(question)));
  card.querySelector(".actions a").hidden = !question.asked?.shown;
  const list = card.querySelector(".choices");
  showChoices(list, question, { rounds: total(question.after) ? ["before", "after"] : ["before"] });
}
