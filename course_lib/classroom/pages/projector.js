// What the whole room sees: the question that is asked, never a name. Bars and beliefs only once it is revealed.

import { count, follow, say, sentence, showJoining } from "./page.js";
import { askedNow, showChoices, total } from "./questions.js";

const place = Object.fromEntries([...document.querySelectorAll("[id]")].map(each => [each.id, each]));
let number = "";

function show(state) {
  const question = askedNow(state.questions);
  place.welcome.hidden = question !== null;
  place.question.hidden = question === null;
  if (question) showQuestion(question);
  else showWelcome(state);
}

function showWelcome(state) {
  say(place.title, state.class);
  showJoining(state);
}

function showQuestion(question) {
  const { asked } = question;
  if (number !== question.number) {
    number = question.number;
    place.text.replaceChildren(...sentence(question.question));
    place.choices.replaceChildren();
  }
  const hidden = question.typed && !asked.revealed; // the known numbers would give it away
  place.choices.hidden = hidden;
  place.typed.hidden = !hidden;
  say(place.unit, question.unit ? ` (${question.unit})` : "");
  showChoices(place.choices, question, { rounds: asked.revealed ? roundsOf(question) : [], believes: asked.revealed });
  const closed = asked.open || asked.revealed ? "" : "Closed. ";
  say(place.progress, `${closed}${asked.round === "after" ? "Asked again: " : ""}${count(asked.answers, "answer")}`);
  place.why.replaceChildren(...(asked.revealed ? sentence(question.choices.find(each => each.right).why) : []));
}

function roundsOf(question) {
  return ["before", "after"].filter(round => total(question[round]));
}

follow(show, trouble => say(place.line, trouble));
