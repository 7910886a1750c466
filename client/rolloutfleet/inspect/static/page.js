/** What every page has: its theme, its keys, copying, and following what happens. */

import { copies } from "./copy.js";
import { byId } from "./dom.js";
import { listen } from "./keys.js";

const THEMES = ["auto", "light", "dark"];

/** @param {import("./keys.js").Binding[]} bindings the page's own keys */
export function begin(bindings) {
  const button = byId("theme", HTMLButtonElement);
  const show = () => (button.textContent = document.documentElement.dataset.theme ?? "auto");
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "auto") + 1) % THEMES.length] ?? "auto";
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    localStorage.setItem("theme", next);
    show();
    document.dispatchEvent(new Event("theme"));
  });
  show();
  listen(bindings);
  copies();
}
