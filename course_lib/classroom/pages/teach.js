// What an instructor needs while teaching: each section's notes and minutes, the next question, and what learners ask.

import { element, keep, say, sentence } from "./page.js";

let plan = null; // lesson -> its sections, with minutes, notes and predictions
export const loading = fetch("view/plan").then(answer => (answer.ok ? answer.json() : {})).catch(() => ({}));
loading.then(loaded => (plan = loaded));

/** Show the learners' questions, most wanted first. */
export function showWonderings(list, wonderings, perform) {
  keep(list, wonderings, each => each.question, each => makeWondering(each, perform), (item, each) => {
    say(item.querySelector(".votes"), each.votes ? `▲ ${each.votes}` : "");
  });
}

function makeWondering(each, perform) {
  const act = (action, words) =>
    element("button", { on: () => perform(action, { question: each.question }), "aria-label": `${words}: ${each.text}` }, words);
  const line = element("p", {}, element("bdi", { class: "name" }, each.name), " ", element("span", { class: "votes" }), act("settle", "Answered"));
  return element("li", {}, line, element("p", {}, each.text), act("show", "Show on projector"));
}

/** Link to the slides of a lesson, which contain the class's polls. */
export function showSlides(link, lesson) {
  link.hidden = !plan?.[lesson];
  link.href = `slides/${lesson}`;
  say(link, `Open the slides of ${lesson}`);
}

/** Show how long the class has been in its section, compared with the plan, and which question comes next. */
export function showTime(place, state, perform) {
  const { call } = state;
  const section = call && plan?.[call.lesson]?.find(each => each.section === call.section);
  const spent = call ? Math.floor((Date.now() / 1000 - call.since) / 60) : 0;
  say(place.time, call ? `${call.lesson} ${call.section}: ${spent}${section ? ` of ${section.minutes}` : ""} min` : "");
  place.time.classList.toggle("late", Boolean(section) && spent > section.minutes);
  const next = call && nextQuestion(call, state.questions);
  place.next.hidden = !next;
  say(place.next, next ? `Ask ${next} next` : "");
  place.next.onclick = () => perform("ask", { number: next, round: "before", seconds: Number(place.seconds.value) });
}

/** The first prediction, from this section on, that has not been asked yet. */
function nextQuestion(call, questions) {
  const sections = plan?.[call.lesson] ?? [];
  const from = sections.slice(Math.max(0, sections.findIndex(each => each.section === call.section)));
  const asked = new Set(questions.filter(each => each.asked).map(each => each.number));
  return from.flatMap(each => each.asks).find(number => !asked.has(number)) ?? null;
}

/** Show the sections of a lesson, each with its notes and a button that calls everyone to it. */
export function showPlan(list, lesson, state, perform) {
  const sections = plan?.[lesson] ?? [];
  keep(list, sections, each => `${lesson} ${each.section}`, each => makeSection(lesson, each, perform), (card, each) => {
    const called = state.call?.lesson === lesson && state.call.section === each.section;
    card.classList.toggle("called", called);
    say(card.querySelector("button"), called ? "Everyone is called here" : "Everyone here");
  });
}

function makeSection(lesson, each, perform) {
  const go = element("button", { on: () => perform("go", { lesson, section: each.section }), "aria-label": `Everyone to ${lesson} ${each.section}` }, "Everyone here");
  const asks = each.asks.length ? ` · asks ${each.asks.join(", ")}` : "";
  const head = element("p", { class: "actions" }, element("span", { class: "quiet" }, `${each.minutes} min${asks}`), go);
  const notes = element("p", { class: "notes" }, ...sentence(each.notes.replaceAll("**", "*")));
  return element("article", { class: "card" }, element("h3", {}, each.section), head, notes);
}
