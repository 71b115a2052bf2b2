// Hands that are up, the longest wait first, each with the cell that its learner has shown.

import { element, keep, say } from "./dom.js";

/** Bring the line of hands up to date. */
export function showHands(place, hands, perform) {
  keep(place, hands, hand => hand.learner, hand => makeHand(hand, perform), showHand);
}

/** Only how long each waits: time passes without news from the class. */
export function showWaits(place, hands) {
  for (const item of place.children) {
    const hand = hands.find(each => String(each.learner) === item.dataset.key);
    if (hand) say(item.querySelector(".wait"), waited(hand.since));
  }
}

function makeHand(hand, perform) {
  const done = element("button", { on: () => perform("lower", { learner: hand.learner }) }, "Done");
  const name = element("bdi", { class: "name" });
  const line = element("p", {}, name, " ", element("span", { class: "wait quiet" }), done);
  const cell = element("details", { hidden: "" }, element("summary", {}, "The cell"), element("pre", { tabindex: "0" }));
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
