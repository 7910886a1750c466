/**
 * Blocks one below the other, filled when they come near the view and emptied when they are far from it. An empty one
 * keeps the height that it had, or is thought to have.
 *
 * @typedef {{element: HTMLElement, weight: number, height: number, fill: (signal: AbortSignal) => Promise<Node[]>}} Block
 */

import { make } from "./dom.js";

/** How far from the view a block may be, in heights of the view. */
const NEAR = 1;

export class Blocks {
  /** @type {Block[]} */
  #blocks = [];
  /** @type {Map<Block, AbortController>} */
  #loading = new Map();
  /** @type {Set<Block>} */
  #filled = new Set();
  #waiting = false;

  /**
   * @param {HTMLElement} scroller
   * @param {number} budget the most that filled blocks weigh together
   */
  constructor(scroller, budget) {
    this.scroller = scroller;
    this.budget = budget;
    scroller.addEventListener("scroll", () => this.look(), { passive: true });
    new ResizeObserver(() => this.look()).observe(scroller);
  }

  /** @param {Block[]} blocks in the order in which they stand in the scroller */
  show(blocks) {
    const kept = new Set(blocks);
    const known = new Set(this.#blocks);
    for (const [block, loading] of this.#loading) if (!kept.has(block)) this.#abandon(block, loading);
    for (const block of this.#filled) if (!kept.has(block)) this.#filled.delete(block);
    for (const block of blocks) if (!known.has(block)) block.element.style.setProperty("min-height", `${block.height}px`);
    this.#blocks = blocks;
    this.look();
  }

  /** Soon, and once a frame. */
  look() {
    if (this.#waiting) return;
    this.#waiting = true;
    requestAnimationFrame(() => {
      this.#waiting = false;
      this.#look();
    });
  }

  #look() {
    const view = this.scroller.getBoundingClientRect();
    if (!view.height) return;
    const wanted = this.#wanted(view);
    for (const [block, loading] of this.#loading) {
      if (!wanted.has(block)) this.#abandon(block, loading);
    }
    for (const block of this.#filled) if (!wanted.has(block)) this.#empty(block);
    for (const block of wanted) if (!this.#filled.has(block) && !this.#loading.has(block)) void this.#fill(block);
  }

  /**
   * The first and the last block in view, and how far into it the view begins or ends, of 1.
   * @param {number} hidden pixels at the top of the scroller that something covers
   * @returns {[Block, number][]}
   */
  ends(hidden) {
    const view = this.scroller.getBoundingClientRect();
    return [view.top + hidden, view.bottom].flatMap((at) => {
      const block = this.#blocks[Math.min(this.#first(at), this.#blocks.length - 1)];
      if (!block) return [];
      const { top, height } = block.element.getBoundingClientRect();
      return [/** @type {[Block, number]} */ ([block, Math.max(0, Math.min(1, (at - top) / Math.max(1, height)))])];
    });
  }

  /** @param {Block} block @param {AbortController} loading */
  #abandon(block, loading) {
    loading.abort();
    this.#loading.delete(block);
  }

  /** The nearest ones, as far as they may weigh together. @param {DOMRect} view @returns {Set<Block>} */
  #wanted(view) {
    const margin = view.height * NEAR;
    const middle = view.top + view.height / 2;
    /** @type {[distance: number, block: Block][]} */
    const near = [];
    for (let place = this.#first(view.top - margin); place < this.#blocks.length; place++) {
      const block = /** @type {Block} */ (this.#blocks[place]);
      const { top, bottom } = block.element.getBoundingClientRect();
      if (top > view.bottom + margin) break;
      near.push([Math.max(top - middle, middle - bottom, 0), block]);
    }
    near.sort(([one], [other]) => one - other);
    let weight = 0;
    return new Set(near.filter(([, block], place) => (weight += block.weight) <= this.budget || place === 0).map(([, block]) => block));
  }

  /** The first block that ends below a height. @param {number} top */
  #first(top) {
    let low = 0;
    let high = this.#blocks.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      const block = /** @type {Block} */ (this.#blocks[middle]);
      if (block.element.getBoundingClientRect().bottom < top) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** One that fails says so, and is tried again when it comes near the next time. @param {Block} block */
  async #fill(block) {
    const loading = new AbortController();
    this.#loading.set(block, loading);
    const content = await block.fill(loading.signal).catch((error) => [make("p", { class: "trouble" }, error.message)]);
    await new Promise(requestAnimationFrame);
    if (loading.signal.aborted) return;
    this.#loading.delete(block);
    this.#filled.add(block);
    block.element.replaceChildren(...content);
    block.element.style.removeProperty("min-height");
    this.look();
  }

  /** @param {Block} block */
  #empty(block) {
    block.height = block.element.getBoundingClientRect().height;
    block.element.style.setProperty("min-height", `${block.height}px`);
    block.element.replaceChildren();
    this.#filled.delete(block);
  }
}
