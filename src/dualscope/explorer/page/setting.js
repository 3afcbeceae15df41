// The model, the template and the label words.
import { $, fill, h } from "./dom.js";
import { change, on, start, state } from "./store.js";

const spelled = name => name.split(/[\\/]/).filter(Boolean).pop() ?? name;

function words() {
  const rename = (i, word) => change({ labels: state.labels.map((one, at) => at === i ? word : one) });
  const remove = i => {
    const fewer = one => ({ ...one, label: one.label === i ? 0 : one.label > i ? one.label - 1 : one.label });
    change({ labels: state.labels.filter((_, at) => at !== i), demonstrations: state.demonstrations.map(fewer), queries: state.queries.map(fewer) });
  };
  const word = (text, i) => h("span", { class: `word l${i % 6}` },
    h("input", { value: text, maxlength: 80, size: Math.max(4, text.length), "aria-label": `Label word ${i + 1}`, spellcheck: "false",
      onchange: event => rename(i, event.target.value) }),
    state.labels.length > 2 && h("button", { type: "button", class: "quiet", "aria-label": `Remove the label word ${text}`, onclick: () => remove(i) }, "×"));
  return h("div", { class: "words" }, state.labels.map(word),
    state.labels.length < start.most.labels &&
      h("button", { type: "button", class: "quiet", "aria-label": "Add a label word", onclick: () => {
        change({ labels: [...state.labels, `Label${state.labels.length + 1}`] });
        [...document.querySelectorAll(".words input")].pop().select();
      } }, "+"));
}

export function setting() {
  const draw = () => fill($("setting"),
    h("label", {}, h("span", {}, "Model"),
      h("select", { id: "model", onchange: event => change({ model: event.target.value }) },
        start.models.map(name => h("option", { value: name, selected: name === state.model, title: name }, spelled(name))))),
    h("label", {}, h("span", {}, "Template"),
      h("input", { id: "template", value: state.template, maxlength: start.most.text, spellcheck: "false",
        onchange: event => change({ template: event.target.value }) })),
    h("div", { class: "field" }, h("span", { id: "words-title" }, "Label words"), words()));
  on("state", ({ shape }) => { if (shape) draw(); });
  draw();
}
