// The line to the class: snapshots as they come, and what the instructor does.

const FIRST_PAUSE = 500; // milliseconds until the line is tried again; each time twice as long
const LONGEST_PAUSE = 5000;
const LOGGED_OUT = "This page is not logged in any more: open the address that course class has printed.";

/** Call `show` with every snapshot, and `told` with what is wrong with the line, "" while nothing is. */
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
      told((await loggedOut()) ? LOGGED_OUT : "Not connected to the class: trying again. What you see may be old.");
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

/** Do something: ask, close, reveal, lower, faster. Returns "", or a sentence that says why it was not done. */
export async function act(action, what = {}) {
  const headers = { "Content-Type": "application/json", "X-XSRFToken": token() };
  try {
    const answer = await fetch(`view/${action}`, { method: "POST", headers, body: JSON.stringify(what) });
    if (answer.ok) return "";
    const said = await answer.json().catch(() => ({}));
    return said.error ?? `The class has answered ${answer.status}: reload this page and try again.`;
  } catch {
    return "The class is not reached: wait until this page is connected, and try again.";
  }
}

/** What only this page knows, so that no other can act in its name. */
function token() {
  return document.querySelector("meta[name=xsrf]").content;
}
