// One dialog for everything that is asked or shown apart.
import { $, fill, h } from "./dom.js";

export function dialog(title, ...content) {
  const box = $("dialog");
  fill(box,
    h("h2", { id: "dialog-title" }, title), ...content,
    h("div", { class: "row" }, h("button", { type: "button", onclick: () => box.close() }, "Close")));
  box.showModal();
  return box;
}

// Text that one takes away: shown as it is, copied by a press.
export function taken(title, id, text) {
  const copied = h("button", { type: "button", onclick: async () => {
    await navigator.clipboard.writeText(text);
    copied.textContent = "Copied";
  } }, "Copy");
  return [h("h3", {}, title, copied), h("pre", { id, tabindex: 0 }, text)];
}
