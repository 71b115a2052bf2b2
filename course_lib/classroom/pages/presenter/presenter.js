// One screen at a time, one step at a time. The URL holds the position: #12.1 is screen 12 with one more step shown.
"use strict";
const sections = [...document.querySelectorAll("#wall section")];
const notes = JSON.parse(document.getElementById("section-notes").textContent);
const isSpeaker = location.hash === "#speaker";
const SMALLEST = 0.62; // of the full type size; a slide that needs smaller type scrolls
let screen = 0, step = 0, other = null, entered = {}, isClassShown = false;

const element = id => document.getElementById(id);
const stepsOf = place => [...sections[place].querySelectorAll(".step")];
const frame = element("class"); // exists only if a class serves the slides
const last = place => stepsOf(place).length - 1;

function fit(section) {
  const content = section.querySelector(".fit");
  for (let size = 1; size >= SMALLEST; size -= 0.04) {
    content.style.fontSize = `${size}em`;
    content.style.setProperty("--scale", size);
    if (section.scrollHeight <= section.clientHeight) break;
  }
}

/** The poll covers the slide while its newest step is a question; `c` shows the class over any slide. */
function showClass() {
  const asked = stepsOf(screen)[step]?.querySelector(".question");
  frame.hidden = !asked && !isClassShown;
  frame.contentWindow.location.replace(`../projector#${asked?.dataset.number ?? ""}`);
}

function show(toScreen, toStep) {
  isClassShown = false;
  screen = Math.max(0, Math.min(sections.length - 1, toScreen));
  step = Math.max(0, Math.min(last(screen), toStep));
  if (isSpeaker) return showSpeaker();
  const section = sections[screen];
  sections.forEach((one, place) => one.classList.toggle("shown", place === screen));
  const steps = stepsOf(screen);
  steps.forEach(one => one.classList.add("on")); // sized for all steps, so nothing jumps when the next one appears
  fit(section);
  steps.forEach((one, place) => one.classList.toggle("on", place <= step));
  if (step) steps[step].scrollIntoView({block: "nearest"});
  element("place").textContent = `${screen + 1} / ${sections.length} · ${section.dataset.section}`;
  history.replaceState(null, "", `#${screen + 1}.${step}`);
  if (other) other.postMessage({at: [screen, step]}, "*");
  if (frame) showClass();
}

function move(key) {
  const section = sections[screen].dataset.section;
  const starts = sections.map((one, place) => place).filter(place => !place || sections[place].dataset.section !== sections[place - 1].dataset.section);
  if (["ArrowRight", "ArrowDown", "PageDown", " ", "Enter"].includes(key)) step < last(screen) ? show(screen, step + 1) : screen < sections.length - 1 && show(screen + 1, 0);
  else if (["ArrowLeft", "ArrowUp", "PageUp", "Backspace"].includes(key)) step ? show(screen, step - 1) : screen && show(screen - 1, Infinity);
  else if (key === "Home") show(0, 0);
  else if (key === "End") show(sections.length - 1, Infinity);
  else if (key === "]") show(starts.find(place => place > screen) ?? screen, 0);
  else if (key === "[") show(starts.filter(place => place < screen).pop() ?? 0, 0);
  else return false;
  return true;
}

function copyOf(place) {
  const copy = sections[place]?.querySelector(".fit").cloneNode(true);
  if (copy) copy.style.fontSize = "1em";
  return copy ?? document.createTextNode("The end.");
}

function showSpeaker() {
  const section = sections[screen], name = section.dataset.section;
  entered[name] ??= Date.now();
  element("section").textContent = name;
  element("now").replaceChildren(copyOf(screen));
  element("now").querySelectorAll(".step").forEach((one, place) => { one.style.opacity = place <= step ? 1 : 0.35; });
  element("then").replaceChildren(copyOf(screen + 1));
  element("notes").innerHTML = section.querySelector("template").innerHTML + (notes[name] ?? "");
  tick();
}

function tick() {
  const planned = Number(sections[screen].dataset.minutes);
  const spent = (Date.now() - entered[sections[screen].dataset.section]) / 60000;
  const clock = element("clock");
  clock.textContent = `${Math.floor(spent)} of ${planned} minutes · ${new Date().toTimeString().slice(0, 5)}`;
  clock.classList.toggle("late", planned > 0 && spent > planned);
}

function press(key) {
  if (key === "p") other = open(location.href.split("#")[0] + "#speaker", "speaker", `width=${frame ? 1600 : 1100},height=${frame ? 900 : 760}`);
  else if (key === "c" && frame) {
    isClassShown = !isClassShown;
    showClass();
  } else return move(key);
  return true;
}

addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("summary, a")) return;
  if (event.target.closest("button") && [" ", "Enter"].includes(event.key)) return;
  if (isSpeaker) {
    if (opener) opener.postMessage({key: event.key}, "*");
    if (!event.target.closest("#notes") || !event.key.startsWith("Page")) event.preventDefault();
  } else if (press(event.key)) {
    event.preventDefault();
  }
});
addEventListener("message", event => {
  if (isSpeaker && event.source === opener && event.data.at) show(...event.data.at);
  if (!isSpeaker && other && event.source === other) event.data.hello ? show(screen, step) : press(event.data.key);
  if (!isSpeaker && frame && event.source === frame.contentWindow) press(event.data.key);
});
element("back").addEventListener("click", () => move("ArrowLeft"));
element("next").addEventListener("click", () => move("ArrowRight"));
addEventListener("resize", () => show(screen, step));

if (isSpeaker) {
  document.body.classList.add("speaker");
  element("speaker").hidden = false;
  if (frame) {
    frame.hidden = false;
    frame.src = `../#${location.pathname.slice(-2)}`; // the instructor's page, at this lesson
  }
  setInterval(tick, 1000);
  if (opener) opener.postMessage({hello: true}, "*");
  show(0, 0);
} else {
  const [toScreen, toStep] = location.hash.slice(1).split(".").map(Number);
  show((toScreen || 1) - 1, toStep || 0);
  addEventListener("hashchange", () => {
    const [toScreen, toStep] = location.hash.slice(1).split(".").map(Number);
    show((toScreen || 1) - 1, toStep || 0);
  });
}
