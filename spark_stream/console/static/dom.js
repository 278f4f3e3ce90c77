// Describes a page as plain objects and updates the document to match them. Elements that remain
// keep their focus, selection and scroll position. Text is set as text, never as HTML.

/** @typedef {{tag: string, props: Object<string, any>, children: Node_[]}} Element_ */
/** @typedef {Element_ | string} Node_ */

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "disabled", "selected"]);

/**
 * Describe an element. Props: attributes; `onclick` and the like; `key`, which identifies an element among its siblings.
 * Children that are null, undefined or false are left out.
 * @param {string} tag @param {Object<string, any>} [props] @param {...any} children
 * @returns {Element_}
 */
export function h(tag, props = {}, ...children) {
  const kept = children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false);
  return { tag, props: props ?? {}, children: kept.map((each) => (typeof each === "object" ? each : String(each))) };
}

/**
 * Make the children of an element those that are described.
 * @param {Element} parent @param {Node_[]} wanted
 */
export function patch(parent, wanted) {
  const present = [...parent.childNodes];
  const keyed = new Map();
  for (const node of present) if (node.__key !== undefined) keyed.set(node.__key, node);
  let at = 0;
  for (const each of wanted) {
    const here = parent.childNodes[at];
    const key = typeof each === "string" ? undefined : each.props.key;
    let node = key === undefined ? here : (keyed.get(key) ?? here);
    if (!node || !fits(node, each)) {
      node = made(each, parent);
      parent.insertBefore(node, here ?? null);
    } else if (node !== here) {
      parent.insertBefore(node, here ?? null);
    }
    update(node, each);
    at += 1;
  }
  while (parent.childNodes.length > at) parent.lastChild.remove();
}

function fits(node, wanted) {
  if (typeof wanted === "string") return node.nodeType === Node.TEXT_NODE;
  return node.nodeType === Node.ELEMENT_NODE && node.localName === wanted.tag && node.__key === wanted.props.key;
}

function made(wanted, parent) {
  if (typeof wanted === "string") return document.createTextNode(wanted);
  const isSvg = wanted.tag === "svg" || (parent.namespaceURI === SVG && parent.localName !== "foreignObject");
  const node = isSvg ? document.createElementNS(SVG, wanted.tag) : document.createElement(wanted.tag);
  node.__key = wanted.props.key;
  return node;
}

function update(node, wanted) {
  if (typeof wanted === "string") {
    if (node.data !== wanted) node.data = wanted;
    return;
  }
  const before = node.__props ?? {};
  for (const name of Object.keys(before)) if (!(name in wanted.props)) set(node, name, null);
  for (const [name, value] of Object.entries(wanted.props)) if (before[name] !== value) set(node, name, value);
  node.__props = wanted.props;
  patch(node, wanted.children);
  // A select accepts its value only after it has its options.
  if (node.localName === "select" && wanted.props.value !== before.value) node.value = wanted.props.value;
}

function set(node, name, value) {
  if (name === "key") return;
  if (name.startsWith("on")) node[name] = value;
  else if (PROPERTIES.has(name) && name in node) node[name] = value ?? "";
  else if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : String(value));
}
