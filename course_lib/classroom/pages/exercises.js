// The exercises of a lesson: who has passed, who tries, and which mistake is made how often.

import { count, element, keep, percent, say, sentence } from "./dom.js";

/** Bring the exercises up to date. */
export function showExercises(place, exercises, learners) {
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
  const words = each.mistake ? sentence(each.mistake) : [element("i", {}, "no mistake that is known")];
  const part = element("span", { class: "quiet" }, each.part ? ` (${each.part})` : "");
  return element("li", {}, element("b", { class: "count" }), element("span", {}, ...words, part));
}

function showNames(place, people) {
  if (place.dataset.names === people.join("\n")) return;
  place.dataset.names = people.join("\n");
  const apart = people.flatMap((name, index) => [index ? ", " : "", element("bdi", {}, name)]);
  place.replaceChildren(...(people.length ? apart : ["nobody"]));
}
