/** The overview: drawn by the server, and drawn again as the fleet goes on; the newest sessions and turns beside it. */

import { readFleet } from "./documents.js";
import { byId, failed, make } from "./dom.js";
import { follow, redraw, seldom } from "./live.js";
import { begin } from "./page.js";
import { ago, clock, counted, decimal } from "./text.js";

const NEWEST = 12;
/** Milliseconds between two looks at a fleet that commits nothing. */
const IDLE = 5000;
const turns = byId("turns", HTMLElement);

/** @param {import("./documents.js").Row} row */
const line = (row) =>
  make(
    "li",
    {},
    make("a", { class: "id", href: `sessions/${encodeURIComponent(row.key)}.html` }, row.session_id),
    make("span", { class: "task" }, row.task_id ?? ""),
    make("span", { class: `badge state-${row.state}` }, row.state),
    make("span", { class: "number" }, counted(row.turns, "turn")),
    make("span", { class: "number" }, row.reward == null ? "" : `reward ${decimal(row.reward)}`),
    make("span", { class: "number", title: clock(row.created_at) }, row.created_at ? ago(Date.now() / 1000 - row.created_at) : ""),
  );

async function newest() {
  const { sessions, newest: lines, complete } = await readFleet();
  byId("newest", HTMLElement).replaceChildren(...lines.map(line));
  byId("total", HTMLElement).textContent = counted(sessions, "session");
  if (!complete) look();
}

/** @param {import("./live.js").Commit} said */
function committed(said) {
  const address = `sessions/${encodeURIComponent(said.key)}.html#turn=${encodeURIComponent(said.turn_id)}`;
  turns.prepend(
    make(
      "li",
      {},
      make("time", {}, new Date().toLocaleTimeString("en-GB")),
      make("a", { class: "id", href: address }, said.turn_id),
      make("span", { class: "task" }, said.session_id),
      make("span", { class: "badge" }, `proxy ${said.ordinal}`),
    ),
  );
  while (turns.childElementCount > NEWEST) turns.lastElementChild?.remove();
  byId("no-turns", HTMLElement).hidden = true;
  figures();
}

const figures = seldom(redraw);
const look = seldom(async () => {
  await Promise.all([redraw(), newest()]);
}, 2000);
const pause = follow({ commit: committed, changed: look, listed: look });
const live = byId("live", HTMLButtonElement);
if (document.body.classList.contains("live")) setInterval(() => live.dataset.state === "live" && !document.hidden && look(), IDLE);
begin([["p", "pause and go on following", pause]]);
newest().catch(failed);
