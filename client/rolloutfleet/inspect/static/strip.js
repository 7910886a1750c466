/** Probability against position: the whole branch as one strip, and where in it the view is. */

import { readStrip } from "./documents.js";
import { LOGPROBS } from "./tokens.js";
import { ownTokens } from "./turns.js";

/** @typedef {import("./documents.js").TreeTurn} TreeTurn */

/** Turns whose probabilities are asked for, the newest first; those of more are too thin to be seen. */
const TURNS = 256;

export class Strip {
  /** @type {TreeTurn[]} */
  #path = [];
  /** @type {Map<string, (number | null)[]>} */
  #known = new Map();
  /** @type {[number, number] | null} */
  #view = null;
  #waiting = false;
  #round = 0;

  /** @param {HTMLCanvasElement} canvas @param {string} key @param {(turn: TreeTurn, token: number) => void} go */
  constructor(canvas, key, go) {
    this.canvas = canvas;
    this.key = key;
    canvas.addEventListener("click", (event) => {
      const place = this.#at((event.offsetX / canvas.clientWidth) * this.#total);
      if (place) go(...place);
    });
    new ResizeObserver(() => this.#soon()).observe(canvas);
    document.addEventListener("theme", () => this.#soon());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#soon());
  }

  /** @param {TreeTurn[]} path */
  async show(path) {
    this.#path = path;
    this.#soon();
    const round = ++this.#round;
    for (const turn of path.slice(-TURNS).reverse()) {
      if (this.#known.has(turn.turn_id) || !turn.completion_tokens) continue;
      this.#known.set(turn.turn_id, await readStrip(this.key, turn.name));
      if (round !== this.#round) return;
      this.#soon();
    }
  }

  /** @param {[number, number] | null} view */
  mark(view) {
    if (view?.join() === this.#view?.join()) return;
    this.#view = view;
    this.#soon();
  }

  get #total() {
    return this.#path.reduce((sum, turn) => sum + ownTokens(turn), 0);
  }

  /** @param {number} token of the branch @returns {[TreeTurn, number] | null} the turn, and which of its own tokens */
  #at(token) {
    for (const turn of this.#path) {
      if (token < ownTokens(turn)) return [turn, Math.floor(token)];
      token -= ownTokens(turn);
    }
    return null;
  }

  #soon() {
    if (this.#waiting) return;
    this.#waiting = true;
    requestAnimationFrame(() => {
      this.#waiting = false;
      this.#draw();
    });
  }

  #draw() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const pen = this.canvas.getContext("2d");
    if (!width || !pen) return;
    this.canvas.width = width * devicePixelRatio;
    this.canvas.height = height * devicePixelRatio;
    pen.scale(devicePixelRatio, devicePixelRatio);
    const colour = (/** @type {string} */ name) => getComputedStyle(this.canvas).getPropertyValue(name);
    const colours = [0, 1, 2, 3, 4].map((place) => colour(`--mark-${place}`));
    const scale = width / Math.max(1, this.#total);
    let left = 0;
    for (const turn of this.#path) {
      const prompt = turn.new_prompt_tokens * scale;
      pen.fillStyle = colour("--strip-prompt");
      pen.fillRect(left, height - 3, prompt, 3);
      this.#bars(pen, this.#known.get(turn.turn_id) ?? [], left + prompt, turn.completion_tokens * scale, height, colours);
      left += ownTokens(turn) * scale;
    }
    if (!this.#view) return;
    const [from, to] = this.#view;
    pen.fillStyle = colour("--strip-view");
    pen.fillRect(from * scale, 0, Math.max(2, (to - from) * scale), height);
  }

  /**
   * One bar a pixel, or a wider one where there are fewer numbers.
   * @param {CanvasRenderingContext2D} pen @param {(number | null)[]} numbers
   * @param {number} left @param {number} width @param {number} height @param {string[]} colours
   */
  #bars(pen, numbers, left, width, height, colours) {
    const bars = Math.min(numbers.length, Math.max(1, Math.ceil(width)));
    for (let bar = 0; bar < bars; bar++) {
      const within = numbers.slice(Math.floor((bar * numbers.length) / bars), Math.ceil(((bar + 1) * numbers.length) / bars)).filter((each) => each !== null);
      if (!within.length) continue;
      const mean = within.reduce((sum, each) => sum + each, 0) / within.length;
      const place = LOGPROBS.findIndex((least) => mean >= Math.exp(least));
      pen.fillStyle = colours[place < 0 ? 4 : place] ?? "";
      const tall = Math.max(1, mean * (height - 4));
      pen.fillRect(left + (bar * width) / bars, height - 3 - tall, Math.max(1, width / bars), tall);
    }
  }
}
