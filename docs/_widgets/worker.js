// Python for all widgets of a page, in a thread of its own: the page stays alive while it computes.

import { loadPyodide } from "./pyodide/pyodide.mjs";

const here = (path) => new URL(path, import.meta.url).href;

/** Say how much has arrived while files are loaded. Python's own loader calls fetch, too. */
function countBytes() {
  const load = globalThis.fetch;
  let arrived = 0;
  const count = new Proxy(load, {
    async apply(target, self, given) {
      const answer = await Reflect.apply(target, self, given);
      if (!answer.ok) throw new Error(`${answer.url} answered ${answer.status}`);
      const counted = answer.body.pipeThrough(
        new TransformStream({
          transform(chunk, stream) {
            arrived += chunk.byteLength;
            postMessage({ arrived });
            stream.enqueue(chunk);
          },
        }),
      );
      return new Response(counted, { status: answer.status, headers: answer.headers });
    },
  });
  globalThis.fetch = count;
}

async function load() {
  countBytes();
  const [python, modules] = await Promise.all([
    loadPyodide({ indexURL: here("./pyodide/") }),
    fetch(here("./modules.zip")).then((answer) => answer.arrayBuffer()),
  ]);
  python.unpackArchive(modules, "zip", { extractDir: "/course" });
  python.runPython("import sys; sys.path.insert(0, '/course')");
  return python;
}

async function start() {
  const python = await globalThis.python;
  return python.pyimport("in_page").Page((text) => postMessage(JSON.parse(text)));
}

globalThis.python = load(); // for whoever looks at it in the browser's console
const page = start();
page.catch((error) => postMessage({ failed: `${error.message ?? error}` }));
onmessage = async (event) => (await page).receive(JSON.stringify(event.data));
