// A learner's page, on a phone or a laptop: join, answer, report being stuck or done, ask questions. Events stay in the
// browser's storage until they are acknowledged, so nothing is lost if the page is reloaded or the server is killed.

import { element, keep, say } from "./page.js";
import { Question } from "../desk/question.js";

const UNKNOWN = 4401; // the class does not know this browser's cookie
const FIRST_PAUSE = 500; // milliseconds before reconnecting; doubled each time
const LONGEST_PAUSE = 8000;
const OUTBOX = `course-class-outbox ${location.pathname}`;
const place = Object.fromEntries([...document.querySelectorAll("[id]")].map(each => [each.id, each]));
const link = new URLSearchParams(location.hash.slice(1)); // code: of the class; me: of the learner's other device
const question = new Question({ answer, say: text => say(place.said, text) });
let state = null;
let channel = null;
let pause = FIRST_PAUSE;
let ends = 0; // when the countdown is over, by this browser's clock
let drawn = "";

place.question.append(question.node);

// ---- unacknowledged events --------------------------------------------------------------------------------------------

function waiting() {
  try {
    return JSON.parse(localStorage.getItem(OUTBOX)) ?? [];
  } catch {
    return [];
  }
}

function store(events) {
  try {
    localStorage.setItem(OUTBOX, JSON.stringify(events));
  } catch {
    say(place.said, "This browser can't store anything: if the connection drops now, what you just did may be lost.");
  }
}

function tell(kind, facts = {}) {
  const id = [...crypto.getRandomValues(new Uint8Array(16))].map(byte => byte.toString(16).padStart(2, "0")).join("");
  const event = { id, kind, at: Date.now() / 1000, ...facts };
  store([...waiting(), event]);
  send([event]);
}

function send(events) {
  if (channel?.readyState === WebSocket.OPEN && events.length) channel.send(JSON.stringify({ events }));
}

function answer(asked, said) {
  tell("answered", { asked: asked.asked, said });
  say(place.said, `You said ${said}. You can change it until the question is closed.`);
}

// ---- the connection -------------------------------------------------------------------------------------------------

function connect() {
  const address = new URL("channel", location.href.split("#")[0].replace(/^http/, "ws"));
  channel = new WebSocket(address);
  channel.onopen = () => send(waiting());
  channel.onmessage = message => hear(JSON.parse(message.data));
  channel.onclose = closed => {
    if (closed.code === UNKNOWN) return showJoin();
    showLine("not connected; what you do is kept and sent later");
    setTimeout(connect, pause * (0.75 + Math.random() / 2));
    pause = Math.min(2 * pause, LONGEST_PAUSE);
  };
}

function hear({ kept = [], refused = {}, state: news }) {
  pause = FIRST_PAUSE;
  const done = new Set([...kept, ...Object.keys(refused)]);
  if (done.size) store(waiting().filter(event => !done.has(event.id)));
  if (Object.keys(refused).length) say(place.said, Object.values(refused).at(-1));
  if (news) show(news);
  else if (done.size) showLine();
}

function showLine(trouble = state?.trouble) {
  say(place.line, trouble || "connected");
  place.line.dataset.reached = String(!trouble);
}

// ---- what is shown ----------------------------------------------------------------------------------------------------

function show(news) {
  const wasInTrouble = state?.trouble, isFirst = state === null;
  state = news;
  place.join.hidden = true;
  place.inside.hidden = false;
  say(place.title, state.class);
  showLine();
  if (wasInTrouble && !state.trouble) send(waiting());
  ends = state.asked?.left != null ? Date.now() + 1000 * state.asked.left : 0;
  const asked = state.asked && { ...state.asked, left: null };
  if (drawn !== JSON.stringify(asked)) { // otherwise, a number that is being typed would vanish
    drawn = JSON.stringify(asked);
    const focused = place.question.contains(document.activeElement) && document.activeElement.dataset.name;
    question.show(asked);
    if (focused) place.question.querySelector(`[data-name="${focused}"]`)?.focus();
  }
  place["nothing-asked"].hidden = state.asked !== null;
  press(place.stuck, state.stuck, state.line ? `I am stuck (#${state.line} in line)` : "I am stuck");
  press(place.slower, state.slower, "Slower, please");
  press(place.done, state.done, "Done");
  say(place.call, state.call ? `The class is at ${state.call.lesson}: ${state.call.section}` : "");
  keep(place.wonderings, state.wonderings, each => each.question, makeWondering, showWondering);
  tick();
  if (isFirst) place.devices.open = matchMedia("(pointer: fine) and (min-width: 50rem)").matches; // probably a laptop
}

function press(button, yes, words) {
  button.setAttribute("aria-pressed", String(yes));
  say(button, words);
}

function tick() {
  const left = Math.ceil((ends - Date.now()) / 1000);
  place.countdown.hidden = !ends || !state?.asked || state.asked.revealed !== null || !(state.asked.open || state.asked.discussed);
  say(place.countdown, left > 0 ? `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")} left` : "Time is up");
}

function makeWondering(each) {
  const vote = () => tell("seconded", { question: each.question, on: button.getAttribute("aria-pressed") !== "true" });
  const button = element("button", { type: "button", on: vote });
  return element("li", {}, element("span", { class: "text" }), button);
}

function showWondering(item, each) {
  say(item.querySelector(".text"), each.text);
  const button = item.querySelector("button");
  button.setAttribute("aria-label", `I want to know, too: ${each.text}`);
  press(button, each.voted, `▲ ${each.votes}`);
}

// ---- joining, and other devices ---------------------------------------------------------------------------------------

function showJoin() {
  place.inside.hidden = true;
  place.join.hidden = false;
  showLine("not joined yet");
  place["code-field"].hidden = Boolean(link.get("code"));
  place.code.value = link.get("code") ?? "";
  if (link.get("me")) return join(link.get("me"));
  place.name.focus();
}

async function post(path, method, body) {
  const headers = { "Content-Type": "application/json", "X-XSRFToken": document.querySelector("meta[name=xsrf]").content };
  try {
    const reply = await fetch(path, { method, headers, body: JSON.stringify(body) });
    const said = await reply.json();
    return reply.ok ? said : { error: said.error };
  } catch {
    return { error: "The class cannot be reached: try again in a moment." };
  }
}

async function join(code) {
  const { error } = await post("join?page=1", "POST", { code, name: place.name.value });
  link.delete("me"); // it works once
  say(place.refused, error ?? "");
  if (error) {
    place["code-field"].hidden = false;
    return;
  }
  store([]);
  history.replaceState(null, "", location.pathname); // so that a screenshot does not show the code
  connect();
}

place.join.addEventListener("submit", event => {
  event.preventDefault();
  join(place.code.value);
});
place.wonder.addEventListener("submit", event => {
  event.preventDefault();
  if (!place.text.value.trim()) return say(place.said, "Write a question first.");
  tell("wondered", { text: place.text.value, lesson: "", section: "" });
  place.text.value = "";
});
place.stuck.addEventListener("click", () => tell("stuck", { on: !state.stuck, lesson: state.call?.lesson ?? "", section: state.call?.section ?? "" }));
place.slower.addEventListener("click", () => tell("slower"));
place.done.addEventListener("click", () => tell("done", { on: !state.done }));
place.leave.addEventListener("click", async () => {
  await post("join", "DELETE", {});
  location.reload();
});
place.devices.addEventListener("toggle", async () => {
  if (!place.devices.open) return;
  const { error, line, phone, qr } = await post("link", "POST", {});
  say(place.desk, error ?? line);
  say(place.phone, error ? "" : phone);
  if (phone) place.phone.href = phone;
  place["phone-code"].hidden = !qr;
  if (qr) place["phone-code"].src = qr;
});
setInterval(tick, 500);
if (link.get("me")) join(link.get("me"));
else connect();
