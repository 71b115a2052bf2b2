// Shared by the pages of a class: elements and text, the connection to the class, and the instructor's actions.
// What learners write is only ever shown as text: nothing here takes HTML.

export { marked as sentence } from "../desk/question.js"; // as desks and phones show it

const FIRST_PAUSE = 500; // milliseconds before reconnecting; doubled each time
const LONGEST_PAUSE = 5000;
const LOGGED_OUT = "This page is no longer logged in: open the address that course class printed.";

/** Whether the slides show this page, in a frame. */
export const isFramed = parent !== window;
document.documentElement.classList.toggle("framed", isFramed);

/** An element with attributes (`on` handles clicks) and children; strings become text. */
export function element(tag, { on, ...attributes } = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (on) made.addEventListener("click", on);
  made.append(...children);
  return made;
}

/** Set an element's text only if it changes, so that a selection or a screen reader stays where it is. */
export function say(place, text) {
  if (place.textContent !== String(text)) place.textContent = text;
}

/** Show where to join: the address large, to be read aloud, then the certificate's fingerprint in small type. */
export function showJoining(state) {
  const at = (state.address + "#").indexOf("#");
  say(document.getElementById("address"), state.address.slice(0, at));
  say(document.getElementById("fingerprint"), state.address.slice(at));
  say(document.getElementById("code"), state.code);
  document.querySelector(".with-code").hidden = !state.code; // a Hub knows who its learners are
}

/** 1 learner, 2 learners. */
export function count(number, what) {
  return `${number} ${what}${number === 1 ? "" : "s"}`;
}

/** The length of a bar in percent; 0 if there is nobody. */
export function percent(number, all) {
  return all ? Math.round((100 * number) / all) : 0;
}

/** Keep one child of `place` for each item, in order: made once by `make`, then updated by `update`. */
export function keep(place, items, key, make, update) {
  const before = new Map([...place.children].map(child => [child.dataset.key, child]));
  items.forEach((item, index) => {
    const name = String(key(item));
    const child = before.get(name) ?? make(item);
    child.dataset.key = name;
    before.delete(name);
    if (place.children[index] !== child) place.insertBefore(child, place.children[index] ?? null);
    update(child, item);
  });
  for (const gone of before.values()) gone.remove();
}

/** Call `show` with every snapshot, and `told` with what is wrong with the connection, or "" if it works. */
export function follow(show, told) {
  let pause = FIRST_PAUSE;
  const open = () => {
    const source = new EventSource("view/changes");
    source.onmessage = event => {
      pause = FIRST_PAUSE;
      told("");
      show(JSON.parse(event.data));
    };
    source.onerror = async () => {
      source.close(); // a browser gives up for good when a proxy answers for a server that is down
      told((await loggedOut()) ? LOGGED_OUT : "Not connected to the class: trying again. What you see may be out of date.");
      setTimeout(open, pause * (0.75 + Math.random() / 2));
      pause = Math.min(2 * pause, LONGEST_PAUSE);
    };
  };
  open();
}

async function loggedOut() {
  const answer = await fetch("view/state").catch(() => null);
  return answer !== null && (answer.status === 401 || answer.status === 403);
}

/** Perform an action, such as ask, close, reveal, lower or faster. Returns "", or why it was not done. */
export async function act(action, what = {}) {
  const headers = { "Content-Type": "application/json", "X-XSRFToken": token() };
  try {
    const answer = await fetch(`view/${action}`, { method: "POST", headers, body: JSON.stringify(what) });
    if (answer.ok) return "";
    const said = await answer.json().catch(() => ({}));
    return said.error ?? `The class answered with status ${answer.status}: reload this page and try again.`;
  } catch {
    return "The class cannot be reached: wait until this page is connected, and try again.";
  }
}

/** The XSRF token, which only this page knows, so that no other page can act on its behalf. */
function token() {
  return document.querySelector("meta[name=xsrf]").content;
}
