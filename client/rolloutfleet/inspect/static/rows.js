/** A list of any length, of which only the rows in view are elements. Rows have one height. */

/** Rows above and below the view that are drawn as well. */
const BEYOND = 6;

export class Rows {
  #count = 0;
  #waiting = false;
  /** @type {Map<number, HTMLElement>} */
  #drawn = new Map();
  selected = -1;

  /**
   * @param {HTMLElement} scroller has one child, which takes the height of all rows
   * @param {number} height of a row
   * @param {(index: number) => HTMLElement} draw
   */
  constructor(scroller, height, draw) {
    this.scroller = scroller;
    this.height = height;
    this.draw = draw;
    this.space = /** @type {HTMLElement} */ (scroller.firstElementChild);
    scroller.addEventListener("scroll", () => this.#soon(), { passive: true });
    new ResizeObserver(() => this.#soon()).observe(scroller);
  }

  /** @param {number} count */
  show(count) {
    this.#count = count;
    this.space.style.setProperty("height", `${count * this.height}px`);
    this.selected = Math.min(this.selected, count - 1);
    this.space.replaceChildren();
    this.#drawn.clear();
    this.#look();
  }

  /** @param {number} step */
  move(step) {
    if (!this.#count) return;
    this.selected = Math.max(0, Math.min(this.#count - 1, this.selected + step));
    const top = this.selected * this.height;
    const { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop) this.scroller.scrollTop = top;
    else if (top + this.height > scrollTop + clientHeight) this.scroller.scrollTop = top + this.height - clientHeight;
    this.#look();
  }

  /** @returns {HTMLElement | undefined} */
  get current() {
    return this.#drawn.get(this.selected);
  }

  #soon() {
    if (this.#waiting) return;
    this.#waiting = true;
    requestAnimationFrame(() => {
      this.#waiting = false;
      this.#look();
    });
  }

  #look() {
    const { scrollTop, clientHeight } = this.scroller;
    const first = Math.max(0, Math.floor(scrollTop / this.height) - BEYOND);
    const end = Math.min(this.#count, Math.ceil((scrollTop + clientHeight) / this.height) + BEYOND);
    for (const [index, row] of this.#drawn) {
      if (index < first || index >= end) {
        row.remove();
        this.#drawn.delete(index);
      }
    }
    for (let index = first; index < end; index++) this.#place(index);
    for (const [index, row] of this.#drawn) row.classList.toggle("selected", index === this.selected);
  }

  /** @param {number} index */
  #place(index) {
    if (this.#drawn.has(index)) return;
    const row = this.draw(index);
    row.style.setProperty("top", `${index * this.height}px`);
    this.#drawn.set(index, row);
    this.space.append(row);
  }
}
