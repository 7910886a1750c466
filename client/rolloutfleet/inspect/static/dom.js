/** Elements. Nothing that others wrote is ever parsed as HTML: it becomes text nodes here, and nowhere else. */

import { shown } from "./text.js";

/**
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, string | number | boolean | null | undefined>} attributes those that are null or false are left out
 * @param {...(Node | string | number | null | undefined | false)} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value != null && value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) {
    if (child != null && child !== false) element.append(child instanceof Node ? child : shown(child));
  }
  return element;
}

/**
 * The element of the page that has an id; the templates have it.
 * @template {HTMLElement} T
 * @param {string} id
 * @param {new () => T} kind
 * @returns {T}
 */
export function byId(id, kind) {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`the page has no ${kind.name} #${id}`);
  return found;
}

/** @param {Event} event @param {string} selector @returns {HTMLElement | null} */
export function closest(event, selector) {
  return event.target instanceof Element ? event.target.closest(selector) : null;
}

/** @param {string} text shown at the foot of the page for some seconds */
export function notice(text) {
  const place = byId("notice", HTMLElement);
  place.textContent = shown(text);
  place.classList.add("on");
  clearTimeout(Number(place.dataset.timer));
  place.dataset.timer = String(setTimeout(() => place.classList.remove("on"), 4000));
}

/** @param {unknown} error */
export function failed(error) {
  if (error instanceof DOMException && error.name === "AbortError") return;
  notice(error instanceof Error ? error.message : String(error));
}
