/** Copying: what a button names, as a command, as JSON, or as ids. */

import { CHUNK, ROOT, read, readTokens, turnPath } from "./documents.js";
import { closest, failed, notice } from "./dom.js";

/** Buttons say what they copy by `data-copy`, and of what by the other attributes. */
export function copies() {
  document.addEventListener("click", (event) => {
    const button = closest(event, "[data-copy]");
    if (button) copy(button).catch(failed);
  });
}

/** @param {HTMLElement} button */
async function copy(button) {
  const { copy: what = "", text = "", key = "", turn = "", name = "", tokens = "0" } = button.dataset;
  const said = what === "json" ? await asJson(key, name) : what === "ids" ? await ids(key, name, Number(tokens)) : what === "curl" ? curl(turn) : text;
  await put(said);
  notice(what === "curl" ? "Copied as curl; set ROLLOUTFLEET_ADMIN_KEY where you run it." : `Copied ${what === "text" ? text : what === "ids" ? "the ids" : "JSON"}.`);
}

/** @param {string} key @param {string} turn a turn's, else the session's tree */
async function asJson(key, turn) {
  return JSON.stringify(await read(turn ? turnPath(key, turn) : `sessions/${encodeURIComponent(key)}/tree.json`), null, 1);
}

/** @param {string} key @param {string} turn @param {number} tokens */
async function ids(key, turn, tokens) {
  /** @type {number[]} */
  const found = [];
  for (let chunk = 0; chunk * CHUNK < tokens; chunk++) found.push(...(await readTokens(key, turn, chunk)).input_ids);
  return JSON.stringify(found);
}

/** @param {string} turn */
function curl(turn) {
  const command = document.getElementById("curl")?.textContent ?? `curl ${new URL("data/sessions.json", ROOT)}`;
  return turn ? command.replace(/\/conversation(?=['"\s]|$)/, `/conversation?branch=${encodeURIComponent(turn)}`) : command;
}

/** @param {string} text */
async function put(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // A bundle behind plain HTTP: the old way, through a selection.
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}
