// Nothing is a dead end: a study, code, a file.
import { post, stream } from "./api.js";
import { dialog, taken } from "./dialog.js";
import { $, h } from "./dom.js";
import { adopt, readOnly, state } from "./store.js";
import { trouble } from "./running.js";

const MOST = 2_000_000; // bytes of a file that is opened

const attempt = work => async event => {
  try { await work(event); } catch (error) { trouble(error.message); }
};

function download(text, type, name) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
const save = () => download(JSON.stringify(state, null, 1) + "\n", "application/json", "dualscope-explorer.json");

async function open({ target }) {
  const [file] = target.files;
  target.value = "";
  if (!file) return;
  if (file.size > MOST) throw new Error(`${file.name} is too large to be a state of the explorer.`);
  let given;
  try { given = JSON.parse(await file.text()); } catch { throw new Error(`${file.name} is not JSON.`); }
  adopt(given);
  trouble(null);
}

async function study() {
  const made = await post("/api/shared", { state });
  dialog("Run as a study",
    h("p", { class: "how" }, "Save both files in one folder and run the command there: the same demonstrations and queries over seeds, with controls and a report. Seed 0 has the numbers of this page."),
    made.note && h("p", { class: "small" }, made.note),
    ...taken("typed.yaml", "study-task", made.task), ...taken("study.yaml", "study-study", made.study), ...taken("In a terminal", "study-command", made.command));
}

async function python() {
  const made = await post("/api/shared", { state });
  dialog("Python", h("p", { class: "how" }, "The same demonstrations, queries and learners as code that runs."),
    made.note && h("p", { class: "small" }, made.note), ...taken("explore.py", "python-code", made.python));
}

// One file with this screen and its answers, made by the server, for whoever has no dualscope.
async function handedOn() {
  $("page").disabled = true;
  try {
    for await (const event of stream("/api/handed_on", { state })) {
      if (event.event === "failed") throw new Error(event.reason);
      if (event.event === "page") download(event.text, "text/html", "dualscope-screen.html");
    }
  } finally { $("page").disabled = false; }
}

export function sharing() {
  if (readOnly) return;
  $("page").addEventListener("click", attempt(handedOn));
  $("save").addEventListener("click", save);
  $("open").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", attempt(open));
  $("study").addEventListener("click", attempt(study));
  $("python").addEventListener("click", attempt(python));
}
