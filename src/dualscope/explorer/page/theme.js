// Light and dark: the system's, until the reader says otherwise.
import { $ } from "./dom.js";

const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;

export function themed(redraw) {
  const tell = () => $("theme").setAttribute("aria-pressed", String(isDark()));
  $("theme").addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; tell(); redraw(); });
  dark.addEventListener("change", () => { tell(); redraw(); });
  tell();
}
