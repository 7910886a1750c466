/** A branch as a conversation: messages as they were rendered, with reasoning, calls and their results. */

import { Blocks } from "./blocks.js";
import { readTurn } from "./documents.js";
import { make } from "./dom.js";
import { count, counted, shown } from "./text.js";
import { heading } from "./turns.js";

/** @typedef {import("./documents.js").TreeTurn} TreeTurn */
/** @typedef {import("./documents.js").Message} Message */
/** @typedef {{section: HTMLElement, block: import("./blocks.js").Block, said: string}} Part */

/** Turns whose messages are in the page at once. */
const TURNS = 40;
/** Characters of a text that are shown at first, and how many a click adds. */
const SHORT = 4000;
const MORE = 20000;
/** Lines of a tool's result that are shown unfolded. */
const LINES = 16;

export class Conversation {
  /** @type {Map<string, Part>} */
  #parts = new Map();

  /** @param {HTMLElement} place @param {HTMLElement} scroller @param {string} key */
  constructor(place, scroller, key) {
    this.place = place;
    this.key = key;
    this.blocks = new Blocks(scroller, TURNS);
  }

  /** @param {TreeTurn[]} path */
  show(path) {
    const parts = path.map((turn) => this.#part(turn));
    this.#parts = new Map(parts.map((part, index) => [/** @type {TreeTurn} */ (path[index]).turn_id, part]));
    this.place.replaceChildren(...parts.map((part) => part.section));
    this.blocks.show(parts.map((part) => part.block));
  }

  /** @param {string} turn @returns {HTMLElement | undefined} */
  section(turn) {
    return this.#parts.get(turn)?.section;
  }

  /** What is known of a turn may change, as its reward; its messages don't. @param {TreeTurn} turn @returns {Part} */
  #part(turn) {
    const said = JSON.stringify(turn);
    const part = this.#parts.get(turn.turn_id) ?? this.#made(turn);
    if (part.said !== said) part.section.replaceChildren(heading(this.key, turn), part.block.element);
    part.said = said;
    return part;
  }

  /** @param {TreeTurn} turn @returns {Part} */
  #made(turn) {
    const element = make("div", { class: "messages" });
    const section = make("section", { class: "turn", "data-turn": turn.turn_id });
    const fill = async (/** @type {AbortSignal} */ signal) => {
      const read = await readTurn(this.key, turn.name, signal);
      return [read.note ? make("p", { class: "note" }, read.note) : null, tools(read.tools), ...read.messages.map(drawn)].filter((each) => each !== null);
    };
    return { section, said: "", block: { element, weight: 1, height: 160, fill } };
  }
}

/** @param {unknown[] | null} said */
function tools(said) {
  if (!said?.length) return null;
  const names = said.map((tool) => field(field(tool, "function") ?? tool, "name") ?? JSON.stringify(tool));
  return folded("tools", `${counted(said.length, "tool")}: ${names.join(", ")}`, () => JSON.stringify(said, null, 2));
}

/** @param {Message} each */
function drawn({ message, cut }) {
  const role = String(message.role ?? "message");
  const reasoning = message.reasoning_content ?? message.reasoning;
  const calls = Array.isArray(message.tool_calls) ? message.tool_calls : [];
  const content = message.content ? written(message.content) : "";
  const about = message.tool_call_id ?? message.name;
  return make(
    "article",
    { class: `message role-${/^[a-z]+$/.test(role) ? role : "other"}` },
    make("h3", {}, role, typeof about === "string" && make("small", {}, about)),
    Boolean(reasoning) && folded("reasoning", `reasoning, ${count(written(reasoning).length)} characters`, () => written(reasoning)),
    role === "tool" && content.split("\n", LINES + 1).length > LINES ? folded("result", firstLine(content), () => content) : content && long(content),
    ...calls.map(call),
    cut != null && make("p", { class: "cut" }, `… the beginning of ${count(cut)} bytes`),
  );
}

/** @param {unknown} said */
function call(said) {
  const about = field(said, "function") ?? said;
  const name = field(about, "name");
  const values = field(about, "arguments");
  return make(
    "div",
    { class: "call" },
    make("span", { class: "name" }, name == null ? "call" : String(name)),
    make("small", {}, String(field(said, "id") ?? "")),
    long(pretty(name == null ? said : values)),
  );
}

/** @param {unknown} said JSON as text is laid out, too */
function pretty(said) {
  if (typeof said !== "string") return JSON.stringify(said, null, 2) ?? "";
  try {
    const read = JSON.parse(said);
    return typeof read === "object" ? JSON.stringify(read, null, 2) : said;
  } catch {
    return said;
  }
}

/** @param {unknown} of @param {string} name @returns {unknown} */
const field = (of, name) => (of && typeof of === "object" ? /** @type {Record<string, unknown>} */ (of)[name] : undefined);

/** A text, or parts of which some are texts. @param {unknown} content @returns {string} */
function written(content) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return JSON.stringify(content);
  return content.map((part) => (typeof field(part, "text") === "string" ? field(part, "text") : JSON.stringify(part))).join("\n");
}

/** @param {string} text */
const firstLine = (text) => `${(text.split("\n", 1)[0] ?? "").slice(0, 120)} … ${count(text.split("\n").length)} lines`;

/** What is drawn only when it is opened. @param {string} kind @param {string} title @param {() => string} text */
function folded(kind, title, text) {
  const details = make("details", { class: `folded ${kind}` }, make("summary", {}, title));
  details.addEventListener("toggle", () => details.open && details.childElementCount === 1 && details.append(long(text())));
  return details;
}

/** A text of which the beginning is shown, and more at each click. @param {string} text */
function long(text) {
  const place = make("div", { class: "text" }, text.slice(0, SHORT));
  let end = Math.min(SHORT, text.length);
  if (end === text.length) return place;
  const button = make("button", { class: "more" }, `${count(text.length - end)} more characters`);
  button.addEventListener("click", () => {
    button.before(shown(text.slice(end, end + MORE)));
    end = Math.min(end + MORE, text.length);
    if (end === text.length) button.remove();
    else button.textContent = `${count(text.length - end)} more characters`;
  });
  place.append(button);
  return place;
}
