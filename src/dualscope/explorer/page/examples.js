// An editable list of examples: demonstrations, or queries.
import { $, fill, h } from "./dom.js";
import { change, fieldsOf, look, on, query, readOnly, start, state } from "./store.js";

export function examples(kind, most, noun) {
  const list = $(kind), isQueries = kind === "queries";
  let dragged = null;

  const set = (entries, shape = true) => change({ [kind]: entries }, shape);
  const edit = (i, patch, shape) => set(state[kind].map((one, at) => at === i ? { ...one, ...patch } : one), shape);
  const move = (from, to) => {
    if (to < 0 || to >= state[kind].length || from === to) return;
    const entries = [...state[kind]];
    entries.splice(to, 0, ...entries.splice(from, 1));
    set(entries);
  };
  const remove = i => {
    set(state[kind].filter((_, at) => at !== i));
    list.children[Math.min(i, state[kind].length - 1)]?.querySelector("textarea")?.focus();
  };
  const grow = area => { area.style.height = "auto"; area.style.height = `${area.scrollHeight + 2}px`; };

  addEventListener("resize", () => list.querySelectorAll("textarea").forEach(grow)); // a phone that is turned

  function text(one, i, field, fields) {
    const area = h("textarea", {
      rows: 1, readonly: readOnly, maxlength: start.most.text, value: one.fields[field] ?? "", spellcheck: "false",
      "aria-label": `${noun} ${i + 1}${fields.length > 1 ? `, ${field}` : ""}`, placeholder: field,
      oninput: event => {
        grow(event.target);
        edit(i, { fields: { ...state[kind][i].fields, [field]: event.target.value } }, false);
      },
      onfocus: () => { if (isQueries && query() !== i) look({ query: i }); },
    });
    requestAnimationFrame(() => grow(area));
    return area;
  }

  function entry(one, i) {
    const fields = fieldsOf(state.template), word = state.labels[one.label] ?? "?";
    const handle = h("button", {
      type: "button", class: "grip", draggable: String(!readOnly), disabled: readOnly, title: "Drag, or press the arrow keys, to reorder",
      "aria-label": `Move ${noun.toLowerCase()} ${i + 1}: arrow up, arrow down`,
      ondragstart: event => { dragged = i; event.dataTransfer.effectAllowed = "move"; event.dataTransfer.setData("text/plain", String(i)); },
      ondragend: () => { dragged = null; },
      onkeydown: event => {
        const to = { ArrowUp: i - 1, ArrowDown: i + 1 }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        move(i, to);
        list.children[Math.max(0, Math.min(to, state[kind].length - 1))].querySelector(".grip").focus();
      },
    }, String(i + 1));
    const label = h("button", {
      type: "button", class: `label l${one.label % 6}`, disabled: readOnly,
      title: isQueries ? "The right answer: press to change it" : "Press to change the label",
      "aria-label": `${isQueries ? "Right answer" : "Label"} of ${noun.toLowerCase()} ${i + 1}: ${word}. Press to change.`,
      onclick: () => {
        edit(i, { label: (state[kind][i].label + 1) % state.labels.length });
        list.children[i].querySelector(".label").focus();
      },
    }, word);
    const item = h("li", {
      class: isQueries && i === query() ? "chosen" : "",
      ondragover: event => { if (dragged !== null) { event.preventDefault(); item.classList.add("over"); } },
      ondragleave: () => item.classList.remove("over"),
      ondrop: event => { event.preventDefault(); item.classList.remove("over"); if (dragged !== null) move(dragged, i); },
    },
      handle,
      h("div", { class: "texts" }, fields.map(field => text(one, i, field, fields))),
      h("div", { class: "side" }, label,
        h("button", { type: "button", class: "quiet", "aria-label": `Delete ${noun.toLowerCase()} ${i + 1}`, title: "Delete",
          disabled: state[kind].length === 1, onclick: () => remove(i) }, "×")));
    if (isQueries) item.addEventListener("click", event => { if (!event.target.closest("button") && query() !== i) look({ query: i }); });
    return item;
  }

  const count = () => { $(`${kind}-count`).textContent = String(state[kind].length); };
  const draw = () => { fill(list, state[kind].map(entry)); count(); };
  const add = () => {
    const fields = Object.fromEntries(fieldsOf(state.template).map(field => [field, ""]));
    set([...state[kind], { fields, label: state[kind].length % state.labels.length }]);
    list.lastElementChild.querySelector("textarea").focus();
    if (isQueries) look({ query: state[kind].length - 1 });
  };

  $(`${kind}-more`).append(h("button", { type: "button", id: `add-${kind}`, onclick: () => { if (state[kind].length < most) add(); } }, "Add"));
  on("state", ({ shape }) => { if (shape) draw(); });
  if (isQueries) on("view", () => [...list.children].forEach((item, i) => item.classList.toggle("chosen", i === query())));
  draw();
}
