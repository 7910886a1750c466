/** What stands above a turn wherever it is shown. */

import { make } from "./dom.js";
import { clock, count, decimal, duration, reasonText, shown } from "./text.js";

/** @typedef {import("./documents.js").TreeTurn} TreeTurn */

/** Steps of a turn, in order. */
export const PHASES = /** @type {const} */ (["queue", "tokenise_in", "pause", "engine", "tokenise_out"]);

/** Its own tokens: those of its prompt that its parent doesn't cover, and its output. @param {TreeTurn} turn */
export const ownTokens = (turn) => turn.new_prompt_tokens + turn.completion_tokens;

/** @param {TreeTurn} turn */
export const seconds = (turn) => (turn.timing ? PHASES.reduce((sum, phase) => sum + (turn.timing?.[phase] ?? 0), 0) : null);

/** @param {string} key of the session @param {TreeTurn} turn */
export function heading(key, turn) {
  const took = seconds(turn);
  const copy = { "data-key": key, "data-turn": turn.turn_id, "data-name": turn.name, "data-tokens": ownTokens(turn) };
  return make(
    "header",
    {},
    make("a", { class: "turn-number", href: `#turn=${encodeURIComponent(turn.turn_id)}`, title: turn.turn_id }, `turn ${turn.number}`),
    turn.lineage.kind !== "main" && make("span", { class: "badge lineage" }, `${turn.lineage.kind} ${turn.lineage.id ?? ""}`),
    turn.branch_reason && make("span", { class: "badge reason" }, `fork: ${reasonText(turn.branch_reason)}`),
    make("span", { class: "fact", title: "new prompt tokens + sampled tokens" }, `${count(turn.new_prompt_tokens)} + ${count(turn.completion_tokens)} tokens`),
    took != null && make("span", { class: "fact" }, duration(took)),
    make("span", { class: "fact" }, turn.finish_reason),
    turn.reward != null && make("span", { class: "badge reward" }, `reward ${decimal(turn.reward)}`),
    turn.trajectory_state && make("span", { class: "fact", title: turn.trajectory_id }, turn.trajectory_state),
    turn.discarded && make("span", { class: "badge reason" }, "discarded"),
    !turn.delivered && make("span", { class: "badge" }, "not delivered"),
    make("span", { class: "fact time" }, clock(turn.created_at)),
    make(
      "span",
      { class: "copies" },
      make("button", { "data-copy": "text", "data-text": shown(turn.turn_id), title: shown(turn.turn_id) }, "id"),
      make("button", { "data-copy": "ids", ...copy, title: "its token ids, as JSON" }, "ids"),
      make("button", { "data-copy": "json", ...copy, title: "as JSON" }, "json"),
      document.getElementById("curl") && make("button", { "data-copy": "curl", ...copy, title: "as a command; the key is not in it" }, "curl"),
    ),
  );
}

/**
 * The turns from the root to one.
 * @param {readonly TreeTurn[]} turns @param {string | null} last
 * @returns {TreeTurn[]}
 */
export function path(turns, last) {
  const known = new Map(turns.map((turn) => [turn.turn_id, turn]));
  /** @type {Set<TreeTurn>} */
  const found = new Set();
  for (let turn = known.get(last ?? ""); turn && !found.has(turn); turn = known.get(turn.parent_id ?? "")) found.add(turn);
  return [...found].reverse();
}

/**
 * The newest turn that follows a turn, or is it; of all turns, where none is named.
 * @param {readonly TreeTurn[]} turns @param {string | null} first
 * @returns {string | undefined}
 */
export function newestBelow(turns, first) {
  const below = new Set([first]);
  const inOrder = [...turns].sort((one, other) => one.number - other.number);
  for (const turn of inOrder) if (first === null || below.has(turn.parent_id)) below.add(turn.turn_id);
  return inOrder.findLast((turn) => below.has(turn.turn_id))?.turn_id;
}
