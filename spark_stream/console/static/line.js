// A partition as a line from its log start to its log end, with its bounds and open transactions.

import { h } from "./dom.js";
import { count, counted } from "./format.js";

const LEFT = 14; // percent of the width for the offsets before the moving part

/**
 * Positions of offsets on the line, in percent. The settled part is compressed, so that the part
 * in which bounds differ has room. Then `broken` is true.
 * @param {any} live a partition
 * @param {number[]} [also] other offsets that need distinct positions
 */
export function scaleOf(live, also = []) {
  const [start, end] = [live.log_start, Math.max(live.log_end, ...also, 0)];
  const marks = [live.last_stable, live.high_watermark, ...also, ...live.open.map((each) => each.first_offset)];
  const known = marks.filter((each) => each !== null && each >= start);
  const least = Math.min(end, ...known);
  const span = nice(1.25 * (end - least));
  if (span === 0 || span >= 0.7 * (end - start)) {
    const whole = Math.max(1, end - start);
    return { broken: false, from: start, at: (offset) => (100 * bounded(offset - start, whole)) / whole };
  }
  const from = end - span;
  const at = (offset) =>
    offset <= from
      ? (LEFT * (offset - start)) / Math.max(1, from - start)
      : LEFT + ((100 - LEFT) * bounded(offset - from, span)) / span;
  return { broken: true, from, at };
}

function bounded(value, most) {
  return Math.min(Math.max(value, 0), most);
}

/** The next of 1, 2, 5, 10, 20, … so that the scale rarely changes. */
function nice(value) {
  if (value <= 0) return 0;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((each) => each * unit).find((each) => each >= value);
}

const X = (value) => `${value.toFixed(3)}%`;

function bar(from, to, style, y, height) {
  const width = Math.max(0, to - from);
  return width > 0 && h("rect", { x: X(from), width: X(width), y, height, class: style });
}

/** A partition as text, for screen readers. */
export function inWords(live) {
  const parts = [`offsets ${count(live.log_start)} to ${count(live.log_end)}`];
  if (live.last_stable === null) parts.push("the new leader has not determined the high watermark yet");
  else {
    parts.push(`last stable offset ${count(live.last_stable)}`, `high watermark ${count(live.high_watermark)}`);
  }
  parts.push(live.open.length ? counted(live.open.length, "open transaction") : "no open transaction");
  return parts.join(", ");
}

/** The line for a row of a table, to scale, with a minimum width for each part. */
export function smallLine(live) {
  const whole = Math.max(1, live.log_end - live.log_start);
  const seen = (offset, most) => Math.min((100 * (offset - live.log_start)) / whole, offset < live.log_end ? most : 100);
  const high = seen(live.high_watermark ?? live.log_end, 98);
  const stable = Math.min(seen(live.last_stable ?? live.log_end, 96), high);
  return h("svg", { class: "line small", role: "img", "aria-label": inWords(live) },
    h("title", {}, inWords(live)),
    h("rect", { x: "0", width: "100%", y: 5, height: 8, class: "unreplicated" }),
    bar(0, high, "held", 5, 8),
    bar(0, stable, "stable", 5, 8),
    h("rect", { x: X(Math.max(0, stable - 0.3)), width: "2", y: 2, height: 14, class: "mark lso" }),
    h("rect", { x: X(Math.max(0, high - 0.3)), width: "2", y: 2, height: 14, class: "mark hw" }));
}

/** The line with names and numbers. @param {any} live @param {any} scale */
export function bigLine(live, scale) {
  const known = live.last_stable !== null;
  const stable = scale.at(live.last_stable ?? live.log_start);
  const high = scale.at(live.high_watermark ?? live.log_start);
  const end = scale.at(live.log_end);
  return h("svg", { class: "line big", role: "img", "aria-label": inWords(live) },
    h("title", {}, inWords(live)),
    h("rect", { x: "0", width: "100%", y: 46, height: 16, class: "rail" }),
    bar(high, end, "unreplicated", 46, 16),
    bar(stable, high, "held", 46, 16),
    bar(0, stable, "stable", 46, 16),
    scale.broken && breakAt(LEFT / 2, 46, 16),
    label(0, 100, "start", live.log_start, 62, 90, "start"),
    known && label(stable, 80, "LSO", live.last_stable, 62, 70, "lso"),
    known && label(high, 36, "HW", live.high_watermark, 40, 46, "hw"),
    label(end, 16, "LEO", live.log_end, 20, 46, "leo"));
}

/** A mark with its name and offset; the text stays within the picture. */
function label(at, y, name, offset, from, to, style) {
  const anchor = at > 50 ? "end" : "start";
  return h("g", { class: `label ${style}` },
    h("line", { x1: X(at), x2: X(at), y1: from, y2: to }),
    h("text", { x: X(at), y, dx: anchor === "end" ? -5 : 5, "text-anchor": anchor }, `${name} ${count(offset)}`));
}

function breakAt(at, y, height) {
  return h("g", { class: "break" },
    h("rect", { x: X(at), width: "6", y: y - 2, height: height + 4 }),
    h("line", { x1: X(at), x2: X(at), y1: y - 2, y2: y + height + 2 }),
    h("line", { x1: X(at + 0.5), x2: X(at + 0.5), y1: y - 2, y2: y + height + 2 }));
}

/** One bar on the scale of a big line, such as a replica's or a transaction's. */
export function stripe(scale, from, to, style, words) {
  return h("svg", { class: "line stripe", role: "img", "aria-label": words }, h("title", {}, words),
    h("rect", { x: "0", width: "100%", y: 6, height: 6, class: "rail" }),
    bar(scale.at(from), Math.max(scale.at(to), scale.at(from) + 0.4), style, 3, 12));
}
