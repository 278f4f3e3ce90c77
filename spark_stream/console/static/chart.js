// Small charts of the history of a day.

import { h } from "./dom.js";
import { clock } from "./format.js";

const [WIDTH, HEIGHT] = [288, 40];

/**
 * A figure over the last day, with its range in words. Times without samples are gaps.
 * @param {Array<number | null>} values the oldest first @param {number} endMs @param {number} stepMs
 * @param {(value: number) => string} format of a value
 */
export function chart(values, endMs, stepMs, format) {
  const known = values.filter((each) => each !== null);
  if (!known.length) return h("span", { class: "quiet" }, "no data yet");
  const most = Math.max(1, ...known);
  const [low, high] = [Math.min(...known), Math.max(...known)].map((each) => format(Math.round(each)));
  const first = values.findIndex((each) => each !== null);
  const words = `${low === high ? low : `${low} to ${high}`} since ${clock(endMs - (values.length - first) * stepMs)}`;
  const lines = [];
  let points = [];
  values.forEach((each, at) => {
    if (each !== null) points.push(`${((WIDTH * at) / (values.length - 1)).toFixed(1)},${(HEIGHT - 1 - ((HEIGHT - 2) * each) / most).toFixed(1)}`);
    if ((each === null || at === values.length - 1) && points.length) {
      lines.push(h("polyline", { points: points.length === 1 ? `${points[0]} ${points[0]}` : points.join(" ") }));
      points = [];
    }
  });
  return [h("svg", { class: "sparkline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": words }, h("title", {}, words), lines), ` ${words}`];
}
