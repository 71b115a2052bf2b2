// The question for the class, as desks and phones show it: choices or a field, later the class's answers.
// All of it is text, and none of it becomes markup.

const LETTERS = "abcdefgh";

/** An element; attributes that begin with `on` are listeners, and false ones are left out. */
export const element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
};

/** A sentence from the course, with `code` as code and *words* emphasized. */
export const marked = (text) =>
  String(text).split(/(`[^`]+`|\*[^*\s][^*]*\*)/).map((piece) => {
    if (/^`.+`$/s.test(piece)) return element("code", {}, piece.slice(1, -1));
    if (/^\*.+\*$/s.test(piece)) return element("em", {}, piece.slice(1, -1));
    return piece;
  });

/** The question, in `node`. It calls `answer(asked, said)` when it is answered, and `say(text)` to show a message. */
export class Question {
  constructor({ answer, say }) {
    this.answer = answer;
    this.say = say;
    this.putAway = "";
    this.node = element("section", { class: "course-class-question", "aria-label": "Question for the class", hidden: true });
  }

  /** Show this question, or nothing if it is null. */
  show(asked) {
    const stage = asked && `${asked.asked} ${asked.open} ${Boolean(asked.revealed)}`;
    if (this.stage !== stage) this.say("");
    this.stage = stage;
    this.node.hidden = !asked || this.putAway === asked.asked;
    if (this.node.hidden) return this.node.replaceChildren();
    const round = asked.round === "after" ? ", second vote" : "";
    this.node.replaceChildren(
      element("h2", {}, `Question for the class${round}: ${asked.number}`),
      element("p", { class: "course-class-text" }, ...marked(asked.question)),
      asked.revealed ? this.outcome(asked) : !asked.open ? this.closed(asked) : asked.typed ? this.field(asked) : this.choices(asked),
    );
  }

  choices(asked) {
    const buttons = asked.choices.map((says, index) => {
      const letter = LETTERS[index];
      return element("button", {
        type: "button", "data-name": `choice-${letter}`, "aria-pressed": String(asked.said === letter),
        onclick: () => this.answer(asked, letter),
      }, element("span", { class: "course-class-letter" }, `${letter})`), " ", element("span", {}, ...marked(says)));
    });
    return element("div", { class: "course-class-choices", role: "group", "aria-label": "Choices" }, ...buttons);
  }

  field(asked) {
    const number = element("input", {
      type: "text", inputmode: "decimal", autocomplete: "off", "data-name": "number", "aria-label": "Your answer, a number",
      value: asked.said ?? false,
    });
    const take = (event) => {
      event.preventDefault();
      const said = Number(number.value.trim().replace(",", "."));
      if (!number.value.trim() || !Number.isFinite(said)) return this.say("A number, please.");
      this.answer(asked, said);
    };
    return element("form", { class: "course-class-field", onsubmit: take }, number, ` ${asked.unit} `,
      element("button", { type: "submit", "data-name": "send" }, "Submit"));
  }

  closed(asked) {
    const said = asked.said === null ? "You did not answer." : `You said ${asked.said}.`;
    const next = asked.discussed
      ? "Now discuss it: find a neighbor who chose a different answer, and try to convince each other. You will vote again."
      : "The question is closed; the class's answers come next.";
    return element("p", {}, `${said} ${next}`);
  }

  /** A bar for each choice, with reasons for the right one and the learner's own; other reasons open on a click. */
  outcome(asked) {
    const { counts, other, before, right, believes, why } = asked.revealed;
    const all = counts.reduce((sum, count) => sum + count, other);
    const rows = asked.choices.map((says, index) => this.row({
      says: asked.typed ? `${says} ${asked.unit}`.trim() : `${LETTERS[index]}) ${says}`,
      count: counts[index], all, was: before && before.counts[index], isRight: index === right,
      isOwn: asked.typed ? String(asked.said) === says : asked.said === LETTERS[index],
      believes: believes[index], why: why[index],
    }));
    if (other) rows.push(this.row({ says: "another number", count: other, all, was: before && before.other, believes: "", why: "" }));
    const many = `${all} ${all === 1 ? "answer" : "answers"}`;
    const own = asked.said === null ? "" : ` · you said ${asked.said}`;
    const away = () => {
      this.putAway = asked.asked;
      this.show(asked);
    };
    return element("div", {},
      element("p", { class: "course-class-many" }, many + own, " ",
        element("button", { type: "button", "data-name": "away", onclick: away }, "Put this away")),
      element("ul", { class: "course-class-outcome" }, ...rows));
  }

  row({ says, count, all, was = null, isRight = false, isOwn = false, believes, why }) {
    const words = element("div", { class: "course-class-says" }, isRight ? "✓ " : "", ...marked(says),
      isRight ? element("strong", {}, " (right)") : "", isOwn ? element("strong", {}, " (yours)") : "");
    const fill = element("div", { class: "course-class-fill" });
    fill.style.width = `${all ? (100 * count) / all : 0}%`;
    const track = element("div", { class: "course-class-track", "aria-hidden": "true" }, fill);
    const number = element("span", { class: "course-class-count" }, was === null ? String(count) : `${was} → ${count}`);
    return element("li", { "data-right": String(isRight) }, words, track, number, this.belief(isRight || isOwn, believes, why));
  }

  belief(open, believes, why) {
    const belief = believes ? [element("em", {}, ...marked(believes), ".")] : [];
    if (open || !why || !believes) return element("div", { class: "course-class-believes" }, ...belief, " ", ...marked(why || ""));
    return element("details", { class: "course-class-believes" }, element("summary", {}, ...belief), ...marked(why));
  }
}
