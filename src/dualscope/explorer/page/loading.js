// Examples from a task that was given at the start, or from a pasted table.
import { post } from "./api.js";
import { dialog } from "./dialog.js";
import { $, h } from "./dom.js";
import { change, on, start, state } from "./store.js";
import { trouble } from "./running.js";

let seed = 0;

async function load(event) {
  event.preventDefault();
  try {
    const { rate, ...drawn } = await post("/api/draw", {
      model: state.model, task: $("load-task").value, shots: Number($("load-shots").value), queries: Math.max(3, Math.min(state.queries.length, start.most.queries)), seed: seed++,
    });
    trouble(null);
    change({ ...drawn, rate: rate ?? state.rate, steps: null, view: { ...state.view, query: 0 } });
  } catch (error) { trouble(error.message); }
}

// Other queries of the task whose template and labels are on the screen.
async function ask() {
  try {
    const { queries, labels, template } = await post("/api/draw", { model: state.model, task: state.task ?? $("load-task").value, shots: 1, queries: Number($("draw-queries").value), seed: seed++ });
    if (JSON.stringify(labels) !== JSON.stringify(state.labels) || template !== state.template)
      throw new Error(`The task ${state.task ?? $("load-task").value} has another template or other label words than the screen; load it first.`);
    trouble(null);
    change({ queries, view: { ...state.view, query: 0 } });
  } catch (error) { trouble(error.message); }
}

function paste() {
  const area = h("textarea", { id: "csv", "aria-label": "A table", placeholder: `${[...state.template.matchAll(/\{(\w+)\}/g)].map(one => one[1]).join(",")},label\n…,${state.labels[0]}` });
  const wrong = h("p", { class: "refused", role: "alert" });
  const take = async kind => {
    try {
      const { examples } = await post("/api/paste", { text: area.value, template: state.template, labels: state.labels });
      change({ [kind]: examples.slice(0, start.most[kind]), steps: null });
      box.close();
    } catch (error) { wrong.textContent = error.message; }
  };
  const box = dialog("Paste a table",
    h("p", { class: "how" }, "One example a line: the template's fields, then the label, separated by commas, semicolons or tabs; a header is optional. It takes the place of what is there."),
    area, wrong,
    h("div", { class: "row" }, h("button", { type: "button", id: "paste-demonstrations", onclick: () => take("demonstrations") }, "As demonstrations"),
      h("button", { type: "button", id: "paste-queries", onclick: () => take("queries") }, "As queries")));
  area.focus();
}

export function loading() {
  const task = h("select", { id: "load-task", "aria-label": "Task" }, start.tasks.map(one => h("option", { value: one.name, title: one.labels.join(", ") }, one.name)));
  $("demonstrations-more").append(
    h("button", { type: "button", id: "paste", onclick: paste }, "Paste CSV"),
    h("form", { class: "load", onsubmit: load }, h("button", { id: "load" }, "Load"),
      h("input", { type: "number", id: "load-shots", min: 1, max: start.most.demonstrations, value: 8, "aria-label": "How many" }), "from", task));
  $("queries-more").append(h("form", { class: "load", onsubmit: event => { event.preventDefault(); ask(); } }, h("button", { id: "draw" }, "Draw"),
    h("input", { type: "number", id: "draw-queries", min: 1, max: start.most.queries, value: 3, "aria-label": "How many queries" }), "from the task"));
  on("state", ({ shape }) => { if (shape && state.task) task.value = state.task; });
  if (state.task) task.value = state.task;
}
