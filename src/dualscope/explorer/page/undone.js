// Undo and redo of everything, by button and by key.
import { $ } from "./dom.js";
import { on, readOnly, redo, steps, undo } from "./store.js";

export function undone() {
  if (readOnly) return;
  const draw = () => {
    const { back, forward } = steps();
    $("undo").disabled = back === 0;
    $("redo").disabled = forward === 0;
  };
  $("undo").addEventListener("click", undo);
  $("redo").addEventListener("click", redo);
  addEventListener("keydown", event => {
    if (!(event.ctrlKey || event.metaKey) || $("dialog").open) return;
    const back = event.key.toLowerCase() === "z" && !event.shiftKey;
    const forward = event.key.toLowerCase() === "y" || event.key.toLowerCase() === "z" && event.shiftKey;
    if (!back && !forward) return;
    event.preventDefault(); // a text box would take back letters that the screen has
    (back ? undo : redo)();
  });
  on("state", draw);
  on("view", draw);
  draw();
}
