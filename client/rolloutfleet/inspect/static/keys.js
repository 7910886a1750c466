/** The keyboard, and the list of its keys behind `?`. */

import { byId, make } from "./dom.js";

/** @type {Record<string, string>} */
const NAMES = { Enter: "↵", ArrowUp: "↑", ArrowDown: "↓", ArrowLeft: "←", ArrowRight: "→" };

/** @typedef {[keys: string, meaning: string, act: () => void]} Binding one or more keys, separated by spaces */

/** @param {Binding[]} bindings */
export function listen(bindings) {
  const help = byId("help", HTMLDialogElement);
  const all = /** @type {Binding[]} */ ([
    ...bindings,
    ["f", "fleet", () => go("home")],
    ["s", "sessions", () => go("sessions")],
    ["t", "light, dark, or as the system", () => byId("theme", HTMLButtonElement).click()],
    ["?", "these keys", () => toggle(help)],
  ]);
  byId("keys", HTMLElement).replaceChildren(...all.flatMap(([keys, meaning]) => described(keys, meaning)), ...described("Esc", "close, leave a field"));
  byId("help-button", HTMLButtonElement).addEventListener("click", () => toggle(help));
  const acts = new Map(all.flatMap(([keys, , act]) => keys.split(" ").map((key) => [key, act])));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return leave(event);
    if (event.ctrlKey || event.metaKey || event.altKey || isField(event.target)) return;
    if (help.open && event.key !== "?") return;
    const act = acts.get(event.key);
    if (act) {
      event.preventDefault();
      act();
    }
  });
}

/** @param {string} keys @param {string} meaning */
const described = (keys, meaning) => [
  make("dt", {}, ...keys.split(" ").map((key) => make("kbd", {}, NAMES[key] ?? key))),
  make("dd", {}, meaning),
];

/** @param {HTMLDialogElement} help */
const toggle = (help) => (help.open ? help.close() : help.showModal());

/** @param {string} name */
function go(name) {
  document.querySelector(`a[data-go="${name}"]`)?.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true }));
}

/** @param {EventTarget | null} target */
const isField = (target) => target instanceof HTMLInputElement || target instanceof HTMLSelectElement || target instanceof HTMLTextAreaElement;

/** @param {KeyboardEvent} event */
function leave(event) {
  if (event.target instanceof HTMLElement) event.target.blur();
}
