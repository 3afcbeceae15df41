// A small note beside what is pointed at; by touch too.
import { h } from "./dom.js";

const note = h("div", { id: "hint", hidden: true, role: "tooltip" });
document.body.append(note);

export function hint(root) {
  const show = target => {
    note.textContent = target.dataset.hint;
    note.hidden = false;
    const box = target.getBoundingClientRect();
    note.style.left = `${Math.max(4, Math.min(box.left, innerWidth - note.offsetWidth - 4))}px`;
    note.style.top = `${box.top > 70 ? box.top - note.offsetHeight - 6 : box.bottom + 6}px`;
  };
  root.addEventListener("pointerover", event => { const target = event.target.closest("[data-hint]"); if (target) show(target); });
  root.addEventListener("pointerout", () => { note.hidden = true; });
}
