// Shows an explorer: its controls, its picture, and its text. All of it comes from Python; nothing is computed here.

const PLAY_EVERY = 1000; // milliseconds per step

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** When the mouse points at a shape, show the label that a screen reader reads. */
function addTooltip(shape) {
  const title = document.createElementNS(shape.namespaceURI, "title");
  title.textContent = shape.getAttribute("aria-label");
  shape.append(title);
}

/** A labeled control and, for a slider, its current value in words. */
function makeControl(control, choose) {
  const id = `course-${Math.random().toString(36).slice(2)}`; // random: each widget has its own copy of this module
  const label = make("label", { for: id }, control.label);
  if (control.kind === "choice") {
    const select = make("select", { id, onchange: () => choose(Number(select.value)) });
    return { nodes: [label, select], show: (words, place) => showChoice(select, words, place) };
  }
  const input = make("input", { id, type: "range", min: 0, step: 1, oninput: () => choose(input.valueAsNumber) });
  const output = make("span", { class: "value", "aria-hidden": "true" }); // a screen reader uses aria-valuetext
  const player = control.plays ? makePlayer(input, choose) : null;
  const show = (words, place) => {
    input.max = words.length - 1;
    if (input.valueAsNumber !== place) input.value = place;
    input.setAttribute("aria-valuetext", words[place]);
    output.textContent = words[place];
    player?.show(place, words.length - 1);
  };
  const field = make("span", { class: "field" }, input, output);
  if (player) field.append(player.node);
  return { nodes: [label, field], show, stop: () => player?.stop() };
}

function showChoice(select, words, place) {
  if ([...select.options].map((option) => option.text).join() !== words.join()) {
    select.replaceChildren(...words.map((word, index) => make("option", { value: index }, word)));
  }
  select.value = place;
}

/** Buttons next to a slider: step back, step forward, and play. */
function makePlayer(input, choose) {
  let timer = null;
  const go = (by) => choose(Math.min(Math.max(input.valueAsNumber + by, 0), Number(input.max)));
  const stop = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  };
  const step = () => (input.valueAsNumber < Number(input.max) ? go(1) : stop());
  const start = () => {
    if (input.valueAsNumber === Number(input.max)) choose(0);
    timer = setInterval(step, PLAY_EVERY);
    play.textContent = "Pause";
  };
  const back = make("button", { type: "button", onclick: () => go(-1) }, "Back");
  const next = make("button", { type: "button", onclick: () => go(1) }, "Next");
  const play = make("button", { type: "button", onclick: () => (timer ? stop() : start()) }, "Play");
  const show = (place, last) => {
    back.setAttribute("aria-disabled", place === 0);
    next.setAttribute("aria-disabled", place === last);
    if (timer && place === last) stop();
  };
  return { node: make("span", { class: "player" }, back, next, play), show, stop };
}

/** Items in the picture that can be moved along their row, with the mouse or the keyboard. */
function makeMovable(stage, move) {
  let current = null; // the item that the Tab key focuses
  let picked = false;
  const items = () => [...stage.querySelectorAll("[data-item]")];
  const rowOf = (item) => items().filter((other) => other.dataset.row === item.dataset.row);
  const focus = (item) => {
    if (!item) return;
    current = item.dataset.item;
    items().forEach((other) => other.setAttribute("tabindex", other === item ? 0 : -1));
    item.focus({ preventScroll: true });
  };
  const moveTo = (item, place) => {
    if (place < 0 || place >= rowOf(item).length || place === Number(item.dataset.place)) return;
    move(item.dataset.item, place);
  };
  const pick = (item, value) => {
    picked = value;
    item.classList.toggle("picked", picked);
    item.setAttribute("aria-pressed", picked);
  };

  stage.addEventListener("keydown", (event) => {
    const item = event.target.closest?.("[data-item]");
    if (!item) return;
    const place = Number(item.dataset.place);
    const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const between = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (sideways && (event.shiftKey || picked)) moveTo(item, place + sideways);
    else if (sideways) focus(rowOf(item)[place + sideways]);
    else if (between) focus(nearestIn(items(), Number(item.dataset.row) + between, place));
    else if (event.key === " " || event.key === "Enter") pick(item, !picked);
    else if (event.key === "Escape") pick(item, false);
    else return;
    event.preventDefault();
  });
  stage.addEventListener("focusin", (event) => {
    const item = event.target.closest?.("[data-item]");
    if (item) current = item.dataset.item;
  });
  stage.addEventListener("pointerdown", (event) => {
    const item = event.target.closest?.("[data-item]");
    if (!item || event.button !== 0) return;
    event.preventDefault();
    focus(item);
    drag(item, event, rowOf(item), (place) => moveTo(item, place));
  });
  /** After a redraw, restore the focus to the item that had it. */
  const restore = (hadFocus) => {
    const all = items();
    if (!all.length) return;
    const item = all.find((other) => other.dataset.item === current) ?? all[0];
    all.forEach((other) => other.setAttribute("tabindex", other === item ? 0 : -1));
    if (hadFocus) focus(item);
    if (picked) pick(item, true);
  };
  return { restore };
}

/** Point at an item of the picture, or at its name in the text below, and both light up. */
function lightBoth(root) {
  const light = ({ type, target }) => {
    const item = type === "pointerleave" ? null : target.closest?.("[data-item], [data-of]");
    const name = item?.dataset.item ?? item?.dataset.of;
    for (const one of root.querySelectorAll("[data-item], [data-of]"))
      one.classList.toggle("lit", name !== undefined && (one.dataset.item ?? one.dataset.of) === name);
  };
  for (const type of ["pointerover", "pointerleave", "focusin"]) root.addEventListener(type, light);
}

function nearestIn(items, row, place) {
  const there = items.filter((item) => Number(item.dataset.row) === row);
  return there[Math.min(place, there.length - 1)];
}

/** Let an item follow the pointer; on release, report its place in its row. */
function drag(item, down, row, drop) {
  const centre = (box) => box.left + box.width / 2;
  const centres = row.map((other) => centre(other.getBoundingClientRect()));
  const own = centre(item.getBoundingClientRect());
  const scale = item.ownerSVGElement.getScreenCTM().a;
  const follow = (event) => item.setAttribute("transform", `translate(${(event.clientX - down.clientX) / scale} 0)`);
  const end = (event) => {
    removeEventListener("pointermove", follow);
    removeEventListener("pointerup", end);
    removeEventListener("pointercancel", end);
    item.removeAttribute("transform");
    if (event.type === "pointercancel") return;
    const dropped = own + event.clientX - down.clientX;
    drop(centres.filter((other, index) => row[index] !== item && other < dropped).length);
  };
  addEventListener("pointermove", follow);
  addEventListener("pointerup", end);
  addEventListener("pointercancel", end);
}

/** This attribute on the focused element keeps JupyterLab from treating arrow keys and letters as its own commands. */
function keepKeys(node) {
  node.querySelectorAll("input, select, button, [data-item]").forEach((one) => {
    one.setAttribute("data-lm-suppress-shortcuts", "true");
  });
}

/** Content wider than the window can also be scrolled with the keyboard. */
function scrollWithKeys(stage) {
  const look = () => {
    if (stage.scrollWidth > stage.clientWidth) stage.setAttribute("tabindex", 0);
    else stage.removeAttribute("tabindex");
  };
  const observer = new ResizeObserver(look);
  observer.observe(stage);
  return { look, stop: () => observer.disconnect() };
}

function render({ model, el }) {
  const choose = (name, place) => {
    model.set("places", { ...model.get("places"), [name]: place });
    model.save_changes();
  };
  const controls = Object.fromEntries(
    model.get("controls").map((one) => [one.name, makeControl(one, (place) => choose(one.name, place))]),
  );
  const press = (name) => model.send({ press: name });
  const buttons = model.get("buttons").map((button) =>
    make("button", { type: "button", onclick: () => press(button.name) }, button.label));
  const stage = make("div", { class: "stage", role: "group", "aria-label": "The picture" });
  const below = make("div", { class: "below", role: "group", "aria-label": "The table" });
  const scrolling = [stage, below].map(scrollWithKeys);
  const said = make("p", { class: "said", role: "status" });
  const movable = makeMovable(stage, (item, to) => model.send({ move: item, to }));

  const showControls = () => {
    const places = model.get("places");
    for (const control of model.get("controls")) controls[control.name].show(control.words, places[control.name]);
  };
  const showPicture = () => {
    const hadFocus = stage !== document.activeElement && stage.contains(document.activeElement);
    stage.innerHTML = model.get("picture");
    stage.querySelectorAll("[data-item]").forEach(addTooltip);
    keepKeys(stage);
    movable.restore(hadFocus);
    scrolling[0].look();
  };
  const showBelow = () => {
    below.innerHTML = model.get("below");
    scrolling[1].look();
  };
  const showWords = () => {
    const busy = model.get("busy");
    said.textContent = busy || model.get("said");
    said.classList.toggle("reached", said.textContent.includes("✓")); // a goal
    const unavailable = model.get("unavailable") ?? []; // a notebook that was saved by an older version has none
    model.get("buttons").forEach(({ name }, place) =>
      buttons[place].setAttribute("aria-disabled", Boolean(busy) || unavailable.includes(name)));
  };

  const root = make(
    "section",
    { class: "course-widget", "aria-label": model.get("title") },
    make("div", { class: "controls" }, ...Object.values(controls).flatMap((control) => control.nodes)),
  );
  if (buttons.length) root.append(make("div", { class: "buttons" }, ...buttons));
  root.append(stage, said); // below the picture, which stays where it is when the words get longer
  if (model.get("help")) root.append(make("p", { class: "help" }, model.get("help")));
  root.append(below);
  el.append(root);
  keepKeys(root);
  lightBoth(root);

  const shown = [
    ["change:controls change:places", showControls],
    ["change:picture", showPicture],
    ["change:below", showBelow],
    ["change:said change:busy change:unavailable", showWords],
  ];
  for (const [events, show] of shown) {
    model.on(events, show);
    show();
  }
  return () => {
    Object.values(controls).forEach((control) => control.stop?.());
    scrolling.forEach((one) => one.stop());
    for (const [events, show] of shown) model.off(events, show);
  };
}

export default { render };
