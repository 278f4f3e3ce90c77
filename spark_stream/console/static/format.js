// Formats of numbers, sizes and times.

import { h } from "./dom.js";

const whole = new Intl.NumberFormat("en-US");
const rough = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });

/** @param {number | null | undefined} value */
export function count(value) {
  return value === null || value === undefined ? "–" : whole.format(value);
}

/** @param {number} value @param {string} noun */
export function counted(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** @param {number | null | undefined} value bytes */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) [value, at] = [value / 1024, at + 1];
  return `${at ? rough.format(value) : whole.format(value)} ${units[at]}`;
}

/** @param {number} value records in a second */
export function rate(value) {
  return `${value < 10 ? rough.format(value) : whole.format(Math.round(value))} records/s`;
}

/** @param {number} seconds */
export function duration(seconds) {
  const left = Math.max(0, Math.round(seconds));
  if (left < 60) return `${left} s`;
  if (left < 3600) return `${Math.floor(left / 60)} min ${left % 60} s`;
  if (left < 86400) return `${Math.floor(left / 3600)} h ${Math.floor((left % 3600) / 60)} min`;
  return `${Math.floor(left / 86400)} d ${Math.floor((left % 86400) / 3600)} h`;
}

/** A configured time, such as "90 ms" or "7 d". @param {number} ms */
export function span(ms) {
  return ms < 1000 ? `${ms} ms` : duration(ms / 1000).replace(/ 0 (s|min|h)$/, "");
}

/** @param {number} ms since the epoch */
export function absolute(ms) {
  const moment = new Date(ms);
  return Number.isNaN(moment.getTime()) ? "–" : moment.toISOString().replace("T", " ").replace("Z", " UTC");
}

/**
 * A moment as "5 s ago"; the exact time is shown on hover.
 * @param {number | null | undefined} ms
 */
export function ago(ms) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  const seconds = (Date.now() - ms) / 1000;
  const text = `${seconds < 600 || seconds >= 3600 ? duration(seconds) : `${Math.floor(seconds / 60)} min`} ago`;
  return h("time", { datetime: new Date(ms).toISOString(), title: absolute(ms) }, text);
}

/** The local time of day, with the date if it is another day. @param {number} ms since the epoch */
export function clock(ms) {
  const moment = new Date(ms);
  const time = `${String(moment.getHours()).padStart(2, "0")}:${String(moment.getMinutes()).padStart(2, "0")}`;
  return moment.toDateString() === new Date().toDateString() ? time : `${moment.toLocaleDateString("en-CA")} ${time}`;
}

/** @param {number} value of 0 to 1 */
export function percent(value) {
  return `${Math.round(100 * value)} %`;
}

/** Text with visible control characters, and without changes of the direction of writing. @param {string} text */
export function printable(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, (sign) => {
    const code = sign.charCodeAt(0).toString(16);
    return code.length > 2 ? `\\u${code}` : `\\x${code.padStart(2, "0")}`;
  });
}
