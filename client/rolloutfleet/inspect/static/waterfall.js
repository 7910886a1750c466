/** How long each turn took, by phase: beside each other, or as the clock had them. */

import { make } from "./dom.js";
import { Rows } from "./rows.js";
import { counted, duration } from "./text.js";
import { PHASES, seconds } from "./turns.js";

/** @typedef {import("./documents.js").TreeTurn} TreeTurn */

const HEIGHT = 26;

export class Waterfall {
  /** @type {TreeTurn[]} */
  #turns = [];
  /** @type {Set<string>} */
  #path = new Set();
  #begin = 0;
  #span = 1;

  /** @param {HTMLElement} scroller @param {HTMLElement} sums @param {HTMLInputElement} byClock */
  constructor(scroller, sums, byClock) {
    this.sums = sums;
    this.byClock = byClock;
    this.rows = new Rows(scroller, HEIGHT, (index) => this.#row(/** @type {TreeTurn} */ (this.#turns[index])));
    byClock.addEventListener("change", () => this.show(this.#turns, this.#path));
  }

  /** @param {TreeTurn[]} turns all of the session @param {Set<string>} path those of the branch */
  show(turns, path) {
    this.#turns = [...turns].sort((one, other) => one.number - other.number);
    this.#path = path;
    const timed = turns.filter((turn) => turn.timing);
    const longest = timed.reduce((most, turn) => Math.max(most, seconds(turn) ?? 0), 0);
    this.#begin = timed.reduce((least, turn) => Math.min(least, began(turn)), Infinity);
    this.#span = (this.byClock.checked ? timed.reduce((most, turn) => Math.max(most, turn.created_at), 0) - this.#begin : longest) || 1;
    this.sums.replaceChildren(
      ...PHASES.map((phase) => {
        const sum = timed.reduce((total, turn) => total + (turn.timing?.[phase] ?? 0), 0);
        return make("span", {}, make("i", { class: `phase ${phase}` }), `${phase} ${duration(sum)}`);
      }),
      make("span", {}, timed.length < turns.length && `${counted(turns.length - timed.length, "turn")} without times`),
    );
    this.rows.show(turns.length);
  }

  /** @param {TreeTurn} turn */
  #row(turn) {
    const took = seconds(turn);
    const bar = make("span", { class: "bar" });
    if (turn.timing && took != null) {
      const start = this.byClock.checked ? (began(turn) - this.#begin) / this.#span : 0;
      bar.style.setProperty("padding-left", `${start * 100}%`);
      for (const phase of PHASES) {
        const piece = make("i", { class: `phase ${phase}` });
        piece.style.setProperty("width", `${(turn.timing[phase] / this.#span) * 100}%`);
        bar.append(piece);
      }
      bar.title = PHASES.map((phase) => `${phase} ${duration(turn.timing?.[phase] ?? 0)}`).join(", ");
    }
    return make(
      "div",
      { class: this.#path.has(turn.turn_id) ? "row on-branch" : "row", "data-turn": turn.turn_id },
      make("a", { href: `#turn=${encodeURIComponent(turn.turn_id)}&view=timing`, title: turn.turn_id }, `turn ${turn.number}`),
      make("span", { class: "lineage" }, turn.lineage.kind === "main" ? "" : turn.lineage.kind),
      bar,
      make("span", { class: "number" }, took == null ? "–" : duration(took)),
    );
  }
}

/** When its call came: it was committed at the end of the last phase. @param {TreeTurn} turn */
const began = (turn) => turn.created_at - (seconds(turn) ?? 0);
