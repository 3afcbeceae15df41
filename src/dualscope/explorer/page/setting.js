// The model, the template and the label words.
import { $, fill, h } from "./dom.js";
import { change, fieldsOf, isWhole, on, readOnly, redraw, start, state, withTemplate } from "./store.js";

const spelled = name => name.split(/[\\/]/).filter(Boolean).pop() ?? name;

function words() {
  const rename = (i, word) => change({ labels: state.labels.map((one, at) => at === i ? word : one) });
  const remove = i => {
    const fewer = one => ({ ...one, label: one.label === i ? 0 : one.label > i ? one.label - 1 : one.label });
    change({ labels: state.labels.filter((_, at) => at !== i), demonstrations: state.demonstrations.map(fewer), queries: state.queries.map(fewer) });
  };
  const word = (text, i) => h("span", { class: `word l${i % 6}` },
    h("input", { readonly: readOnly, value: text, maxlength: 80, size: Math.max(4, text.length), "aria-label": `Label word ${i + 1}`, spellcheck: "false",
      onchange: event => rename(i, event.target.value) }),
    !readOnly && state.labels.length > 2 && h("button", { type: "button", class: "quiet", "aria-label": `Remove the label word ${text}`, onclick: () => remove(i) }, "×"));
  return h("div", { class: "words" }, state.labels.map(word),
    !readOnly && state.labels.length < start.most.labels &&
      h("button", { type: "button", class: "quiet", "aria-label": "Add a label word", onclick: () => {
        change({ labels: [...state.labels, `Label${state.labels.length + 1}`] });
        [...document.querySelectorAll(".words input")].pop().select();
      } }, "+"));
}

export function setting() {
  const draw = () => fill($("setting"),
    h("label", {}, h("span", {}, "Model"),
      h("select", { id: "model", disabled: readOnly, onchange: event => change({ model: event.target.value }) },
        start.models.map(name => h("option", { value: name, selected: name === state.model, title: name }, spelled(name))))),
    h("label", {}, h("span", {}, "Template"),
      h("input", { id: "template", readonly: readOnly, value: state.template, maxlength: start.most.text, spellcheck: "false",
        onchange: event => { if (event.target.value !== state.template) change(withTemplate(event.target.value)); },
        oninput: event => {
          if (!isWhole(event.target.value)) return;
          const { selectionStart: at } = event.target, before = fieldsOf(state.template).join();
          change(withTemplate(event.target.value), false);
          // Other fields are other boxes; while a brace is open, those of before stay.
          if (fieldsOf(event.target.value).join() === before) return;
          redraw();
          $("template").focus();
          $("template").setSelectionRange(at, at);
        } })),
    h("div", { class: "field" }, h("span", { id: "words-title" }, "Label words"), words()));
  on("state", ({ shape }) => { if (shape) draw(); });
  draw();
}
