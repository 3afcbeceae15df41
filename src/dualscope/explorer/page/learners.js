// Which learners are shown: every registered one can be, in its role.
import { dialog } from "./dialog.js";
import { $, h } from "./dom.js";
import { change, start, state } from "./store.js";

const ROLES = { hypothesis: "Hypotheses: what in-context learning may be", ceiling: "Ceilings: how well anything of its kind could do", null: "Nulls: they teach nothing" };

function toggle(name, on) {
  const learners = start.learners.map(one => one.name).filter(one => one === name ? on : state.learners.includes(one));
  change({ learners, focus: learners.includes(state.focus) ? state.focus : learners[0] ?? state.focus });
}

export function learners() {
  $("choose-learners").addEventListener("click", () => dialog("Learners",
    h("p", { class: "how" }, "Zero-shot and in-context are always shown."),
    h("div", { class: "roles" }, Object.entries(ROLES).map(([role, text]) => {
      const own = start.learners.filter(one => one.role === role);
      return own.length > 0 && h("fieldset", {}, h("legend", {}, text), own.map(one => h("label", {},
        h("input", { type: "checkbox", checked: state.learners.includes(one.name), value: one.name, onchange: event => toggle(one.name, event.target.checked) }),
        one.name, h("small", {}, one.about))));
    }))));
}
