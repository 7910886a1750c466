/**
 * A branch as its tokens, each with classes of what it is. Colours come from those by the mode that the whole view has:
 * to change the mode is to change one class. At most BUDGET tokens are elements.
 */

import { Blocks } from "./blocks.js";
import { CHUNK, readTokens } from "./documents.js";
import { make } from "./dom.js";
import { shown } from "./text.js";
import { heading, ownTokens } from "./turns.js";

/** @typedef {import("./documents.js").TreeTurn} TreeTurn */
/** @typedef {import("./documents.js").Tokens} Tokens */
/** @typedef {import("./blocks.js").Block & {turn: TreeTurn, from: number}} Chunk `from`: where it begins in the branch */
/** @typedef {{section: HTMLElement, chunks: Chunk[], said: string}} Part */

export const MODES = /** @type {const} */ (["logprob", "version", "mask", "advantage", "mismatch"]);
const BUDGET = 4900;
/** A token's log-probability is at least so much: classes 0, 1, 2, ...; the same as `rolloutfleet show` has. */
export const LOGPROBS = [-0.05, -0.3, -1, -2.5];
/** The trainer's log-probability is no further off. */
export const MISMATCHES = [0.01, 0.1, 0.5];
/** An advantage is no further from 0. */
export const ADVANTAGES = [0.01, 0.5, 1.5];
const COLOURS = 6;
/** Pixels that the bar above the tokens covers. */
const BAR = 100;
/** About how many pixels of height a token takes before it is known. */
const HEIGHT = 0.95;

export class TokenView {
  /** @type {Map<string, Part>} */
  #parts = new Map();
  /** @type {WeakMap<Element, {tokens: Tokens, turn: TreeTurn}>} */
  #told = new WeakMap();

  /** Versions of the tokens that were drawn so far. @type {Set<number>} */
  versions = new Set();

  /**
   * @param {HTMLElement} place @param {HTMLElement} scroller @param {string} key
   * @param {() => void} seen a further version was
   */
  constructor(place, scroller, key, seen) {
    this.place = place;
    this.key = key;
    this.seen = seen;
    this.blocks = new Blocks(scroller, BUDGET);
  }

  /** @param {TreeTurn[]} path */
  show(path) {
    let from = 0;
    /** @type {Map<string, Part>} */
    const parts = new Map();
    for (const turn of path) {
      parts.set(turn.turn_id, this.#part(turn, from));
      from += ownTokens(turn);
    }
    this.#parts = parts;
    this.place.replaceChildren(...[...parts.values()].map((part) => part.section));
    this.blocks.show([...parts.values()].flatMap((part) => part.chunks));
  }

  /** @param {string} turn @param {number} [token] of its own @returns {HTMLElement | undefined} */
  section(turn, token) {
    const part = this.#parts.get(turn);
    return token == null ? part?.section : part?.chunks[Math.floor(token / CHUNK)]?.element;
  }

  /** Where in the branch the view is: from and to which token. @returns {[number, number] | null} */
  get inView() {
    const [first, last] = /** @type {[Chunk, number][]} */ (this.blocks.ends(BAR)).map(([chunk, part]) => chunk.from + part * chunk.weight);
    return first === undefined || last === undefined ? null : [first, last];
  }

  /** All that is known of a token, and of those that stand for the same character. @param {HTMLElement} element */
  told(element) {
    const of = this.#told.get(/** @type {Element} */ (element.parentElement));
    return of && { ...of, first: Number(element.dataset.at), many: Number(element.dataset.many ?? 1) };
  }

  /** @param {number[]} versions */
  #note(versions) {
    const before = this.versions.size;
    for (const version of versions) if (version >= 0) this.versions.add(version);
    if (this.versions.size > before) this.seen();
  }

  /** @param {TreeTurn} turn @param {number} from @returns {Part} */
  #part(turn, from) {
    const said = JSON.stringify(turn);
    const part = this.#parts.get(turn.turn_id) ?? this.#made(turn, from);
    if (part.said !== said) part.section.replaceChildren(heading(this.key, turn), ...part.chunks.map((chunk) => chunk.element));
    part.said = said;
    return part;
  }

  /** @param {TreeTurn} turn @param {number} from @returns {Part} */
  #made(turn, from) {
    const own = ownTokens(turn);
    const chunks = Array.from({ length: Math.ceil(own / CHUNK) }, (_, number) => this.#chunk(turn, from, number, Math.min(CHUNK, own - number * CHUNK)));
    return { section: make("section", { class: "turn", "data-turn": turn.turn_id }), chunks, said: "" };
  }

  /** @param {TreeTurn} turn @param {number} from @param {number} number @param {number} weight @returns {Chunk} */
  #chunk(turn, from, number, weight) {
    const element = make("div", { class: "chunk" });
    const fill = async (/** @type {AbortSignal} */ signal) => {
      const tokens = await readTokens(this.key, turn.name, number, signal);
      this.#told.set(element, { tokens, turn });
      this.#note(tokens.versions);
      return drawn(tokens, turn.new_prompt_tokens);
    };
    return { element, weight, height: Math.max(20, weight * HEIGHT), fill, turn, from: from + number * CHUNK };
  }
}

/** One element a token; those that stand for one character together are one. @param {Tokens} tokens @param {number} prompt */
function drawn(tokens, prompt) {
  /** @type {HTMLElement[]} */
  const elements = [];
  tokens.texts.forEach((text, at) => {
    const before = elements.at(-1);
    if (text === null && before) before.dataset.many = String(Number(before.dataset.many ?? 1) + 1);
    else elements.push(element(tokens, at, text, tokens.start + at >= prompt));
  });
  return elements;
}

/** @param {Tokens} tokens @param {number} at @param {string | null} text @param {boolean} sampled */
function element(tokens, at, text, sampled) {
  const made = document.createElement("span");
  made.className = sampled ? "t" : "t prompt";
  made.textContent = text === null ? "·" : shown(text).replaceAll("\n", "↵\n");
  made.dataset.at = String(at);
  if (!sampled) return made;
  const logprob = tokens.logprobs[at] ?? 0;
  made.dataset.p = String(classOf(LOGPROBS.map((least) => logprob >= least)));
  made.dataset.v = String((tokens.versions[at] ?? 0) % COLOURS);
  made.dataset.m = String(tokens.loss_mask[at]);
  const advantage = tokens.annotations.advantages?.[at];
  if (advantage != null) made.dataset.a = `${advantage < 0 ? "-" : "+"}${classOf(ADVANTAGES.map((most) => Math.abs(advantage) <= most))}`;
  const trainers = tokens.annotations.logprobs?.[at];
  if (trainers != null) made.dataset.d = String(classOf(MISMATCHES.map((most) => Math.abs(trainers - logprob) <= most)));
  return made;
}

/** The first that holds. @param {boolean[]} holds */
const classOf = (holds) => (holds.includes(true) ? holds.indexOf(true) : holds.length);

/** What the colours of a mode stand for. @param {string} mode @param {Set<number>} versions */
export function legend(mode, versions) {
  /** @type {Record<string, () => [string, string, string | number][]>} name of the attribute, its value, what it stands for */
  const entries = {
    logprob: () => [...LOGPROBS.map((least, place) => /** @type {[string, string, string]} */ (["p", String(place), `≥ ${percent(least)}`])), ["p", "4", "less"]],
    version: () => [...versions].sort((one, other) => one - other).map((version) => ["v", String(version % COLOURS), `v${version}`]),
    mask: () => [["m", "1", "trained"], ["m", "0", "not trained"]],
    advantage: () => [["a", "-3", "strongly negative"], ["a", "-1", "negative"], ["a", "+0", "none"], ["a", "+1", "positive"], ["a", "+3", "strongly positive"]],
    mismatch: () => [...MISMATCHES.map((most, place) => /** @type {[string, string, string]} */ (["d", String(place), `≤ ${most}`])), ["d", "3", "more"]],
  };
  const swatches = (entries[mode]?.() ?? []).map(([name, value, text]) => make("span", { class: "t", [`data-${name}`]: value }, text));
  return [...swatches, make("span", { class: "t prompt" }, "prompt")];
}

/** @param {number} logprob */
const percent = (logprob) => `${Math.round(Math.exp(logprob) * 100)}%`;
