// Where the class is: a row for each lesson, a tile for each section, the stronger its colour, the more learners are there.

import { element, keep, percent, say } from "./dom.js";

const DARKEST = 45; // percent of colour in a tile, so that its text can be read

/** Bring the map up to date; lessons in which nobody has been are named in one line. */
export function showSections(map, rest, lessons) {
  const most = Math.max(...lessons.flatMap(lesson => lesson.sections.map(section => section.here)));
  const visited = lessons.filter(lesson => lesson.sections.some(section => section.been));
  keep(map, visited, each => each.number, makeLesson, (row, lesson) => {
    keep(row.querySelector("ol"), lesson.sections, each => each.heading, makeTile, (tile, section) => {
      say(tile.querySelector(".here"), section.here);
      say(tile.querySelector(".been"), `${section.been} been`);
      tile.style.setProperty("--share", `${(DARKEST * percent(section.here, most)) / 100}%`);
      tile.classList.toggle("empty", !section.here);
    });
  });
  const others = lessons.filter(lesson => !visited.includes(lesson)).map(lesson => lesson.number);
  say(rest, others.length ? `Nobody has been in ${others.join(", ")}.` : "");
}

function makeLesson(lesson) {
  const title = element("h3", {}, element("span", { class: "number" }, lesson.number), " ", lesson.title);
  return element("section", { class: "lesson" }, title, element("ol", { class: "tiles" }));
}

function makeTile(section) {
  const here = element("b", { class: "here" });
  const numbers = element("span", {}, here, " here, ", element("span", { class: "been" }));
  return element("li", { class: "tile" }, element("span", { class: "heading", title: section.heading }, section.heading), numbers);
}
