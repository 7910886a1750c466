/** The list of sessions: search, filters, order; every choice is in the page's address. */

import { readSessions } from "./documents.js";
import { byId, closest, failed, make } from "./dom.js";
import { RANGES, chosen, range } from "./filters.js";
import { follow, seldom } from "./live.js";
import { begin } from "./page.js";
import { Rows } from "./rows.js";
import { ago, count, counted, decimal, versions } from "./text.js";

/** @typedef {import("./documents.js").Row} Row */

const HEIGHT = 34;
const form = byId("filters", HTMLFormElement);
const search = /** @type {HTMLInputElement} */ (form.elements.namedItem("q"));
/** @type {Row[]} */
let all = [];
/** @type {Row[]} */
let listed = [];

const rows = new Rows(byId("sessions", HTMLElement), HEIGHT, (index) => drawn(/** @type {Row} */ (listed[index])));

/** @param {Row} row */
function drawn(row) {
  return make(
    "div",
    { class: "row", "data-key": row.key },
    make("a", { class: "id", href: `sessions/${encodeURIComponent(row.key)}.html`, title: row.session_id }, row.session_id),
    make("span", { class: "task", title: row.task_id }, row.task_id ?? "–"),
    row.group ? make("a", { class: "group", href: `groups/${encodeURIComponent(row.group)}.html`, title: row.group_id }, row.group_id) : make("span", {}, "–"),
    make("span", {}, make("span", { class: `badge state-${row.state}` }, row.state), row.outcome && row.outcome !== "completed" && make("span", { class: "badge" }, row.outcome), row.source !== "fleet" && make("span", { class: "badge" }, row.source)),
    make("span", { class: "number" }, count(row.turns)),
    make("span", { class: "number" }, count(row.tokens)),
    make("span", { class: "number" }, count(row.branches)),
    make("span", { class: "number reward" }, decimal(row.reward)),
    make("span", { class: "number" }, versions(row.version_min, row.version_max)),
    make("span", { class: "number" }, row.created_at ? ago(Date.now() / 1000 - row.created_at) : "–"),
  );
}

/** As the address says, in the fields and in the list. */
function apply() {
  const asked = new URLSearchParams(location.search);
  const marked = listed[rows.selected]?.key;
  listed = chosen(all, asked);
  rows.selected = listed.findIndex((row) => row.key === marked);
  byId("count", HTMLElement).textContent =
    listed.length === all.length ? counted(all.length, "session") : `${count(listed.length)} of ${counted(all.length, "session")}`;
  byId("none", HTMLElement).hidden = listed.length > 0 || all.length === 0;
  rows.show(listed.length);
  for (const head of document.querySelectorAll("[data-sort]")) {
    const by = head.getAttribute("data-sort");
    const sort = asked.get("sort") ?? "-created";
    head.setAttribute("aria-sort", sort === by ? "ascending" : sort === `-${by}` ? "descending" : "none");
  }
}

/** @param {string} name @param {string} value */
function ask(name, value) {
  const asked = new URLSearchParams(location.search);
  if (value) asked.set(name, value);
  else asked.delete(name);
  history.replaceState(null, "", `${location.pathname}${asked.size ? `?${asked}` : ""}`);
  rows.scroller.scrollTop = 0;
  apply();
}

/** The fields, from the address. */
function fill() {
  const asked = new URLSearchParams(location.search);
  for (const field of form.elements) {
    if (field instanceof HTMLInputElement || field instanceof HTMLSelectElement) {
      field.value = asked.get(field.name) ?? "";
      check(field);
    }
  }
}

/** @param {HTMLInputElement | HTMLSelectElement} field */
function check(field) {
  const wrong = RANGES.includes(field.name) && field.value.trim() !== "" && !range(field.value);
  field.setCustomValidity(wrong ? "a number or a range: 3, 0.5..1, ..2, >=4" : "");
  field.title = field.validationMessage;
}

/** The choices of states that there are. */
function states() {
  const field = /** @type {HTMLSelectElement} */ (form.elements.namedItem("state"));
  const there = [...new Set(all.flatMap((row) => [row.state, row.outcome, row.fate, row.source]).filter((each) => each != null))].sort();
  const options = [...field.options].map((option) => option.value).filter(Boolean);
  if (there.join() === options.join()) return;
  const value = new URLSearchParams(location.search).get("state") ?? "";
  field.replaceChildren(make("option", { value: "" }, "any"), ...there.map((each) => make("option", { value: each }, each)));
  field.value = value;
}

async function load() {
  const found = await readSessions();
  all = found.sessions;
  byId("complete", HTMLElement).hidden = found.complete;
  states();
  apply();
  if (!found.complete) again();
}

/** @param {number} step */
const move = (step) => rows.move(step);
const again = seldom(load, 2000);
const pause = follow({ changed: again, listed: again });

form.addEventListener("input", (event) => {
  const field = /** @type {HTMLInputElement | HTMLSelectElement} */ (event.target);
  check(field);
  ask(field.name, field.value);
});
form.addEventListener("submit", (event) => event.preventDefault());
byId("clear", HTMLButtonElement).addEventListener("click", () => {
  history.replaceState(null, "", location.pathname);
  fill();
  apply();
});
byId("columns", HTMLElement).addEventListener("click", (event) => {
  const by = closest(event, "[data-sort]")?.dataset.sort;
  if (by) ask("sort", new URLSearchParams(location.search).get("sort") === `-${by}` ? by : `-${by}`);
});
addEventListener("popstate", () => {
  fill();
  apply();
});
begin([
  ["j ArrowDown", "next session", () => move(1)],
  ["k ArrowUp", "session before", () => move(-1)],
  ["Enter o", "open it", () => rows.current?.querySelector("a")?.click()],
  ["/", "search", () => search.focus()],
  ["p", "pause and go on following", pause],
]);
fill();
load().catch(failed);
