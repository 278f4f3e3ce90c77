// Actions: a form, the plan of its effect, and a confirmation, in one dialog. The server plans and
// applies an action. The brokers check the permissions.

import { post } from "./api.js";
import { refusalOf } from "./permissions.js";
import { h, patch } from "./dom.js";
import { count } from "./format.js";
import { announce, name, remedy, sentence, table } from "./widgets.js";

const TOPIC = { name: "topic", label: "Name", required: true };
const CONFIG = { name: "config", label: "Settings", kind: "settings", hint: "One in each line, such as retention.ms=3600000." };
const PARTITIONS = { name: "partitions", label: "Only these partitions", kind: "numbers", hint: "Such as 0, 3. Empty: all." };
const POSITION = "earliest, latest, an offset, or a time in UTC, such as 2024-05-01T12:30.";

/** The title and the fields of each action. The server has the same names. */
const ACTIONS = {
  "create-topic": { title: () => "Create a topic", fields: [TOPIC,
    { name: "columns", label: "Columns", hint: "In Spark's syntax, such as: id bigint, name string. Empty: key, value, headers and timestamp." },
    { name: "partitions", label: "Partitions", kind: "number", hint: "Empty: 1." },
    { name: "replication_factor", label: "Replication factor", kind: "number", hint: "Empty: the cluster's default." }, CONFIG] },
  "alter-topic": { title: (given) => `Alter topic ${given.topic}`, fields: [
    { name: "partitions", label: "New number of partitions", kind: "number", hint: "It cannot decrease." },
    { name: "columns", label: "Columns to add", hint: "Such as: remark string." },
    { name: "schema", label: "Or the whole new schema", hint: "New columns come last, and numbers may become wider." }, CONFIG] },
  "delete-topic": { title: (given) => `Delete topic ${given.topic}`, fields: [] },
  "trim-topic": { title: (given) => `Trim topic ${given.topic}`, fields: [
    { name: "before", label: "First position to keep", required: true, hint: POSITION }, PARTITIONS] },
  "reset-consumer": { title: (given) => `Reset ${given.consumer}`, fields: [
    { name: "to", label: "New position", required: true, hint: POSITION },
    { name: "topics", label: "Only these topics", kind: "names", hint: "Empty: all topics with a stored position." }, PARTITIONS] },
  "abort-transaction": { title: (given) => `Abort the transaction of ${given.transactional_id}`, fields: [] },
  "elect-preferred": { title: (given) => `Elect preferred leaders${given.topic ? ` of ${given.topic}` : ""}`, fields: [] },
};

/** The actions that take nothing away. */
const SAFE = new Set(["create-topic", "alter-topic", "elect-preferred"]);

const shown = (cell) => (cell === null ? "none" : typeof cell === "number" ? count(cell) : cell);
const split = (text) => text.split(/[\s,]+/).filter(Boolean);
const PARSE = {
  number: Number,
  numbers: (text) => split(text).map(Number),
  names: split,
  settings: (text) => Object.fromEntries(text.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
    const at = line.includes("=") ? line.indexOf("=") : line.length;
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  })),
};

/**
 * A button that opens the dialog of an action, null in a read-only console. Without the permission
 * the button has the reason instead.
 * @param {any} session @param {string} action @param {string} words
 * @param {Object<string, any>} [given] parameters that the view fills in @param {string} [style]
 */
export function actionButton(session, action, words, given = {}, style = "") {
  if (!session.allows_changes) return null;
  const { number, ...resource } = given;
  const refusal = session.needs_login ? refusalOf({ action, ...resource }) : "";
  const reason = refusal && `${sentence(refusal)} An administrator can allow it.`;
  const onclick = () => (reason ? document.dispatchEvent(new CustomEvent("outcome", { detail: { outcome: reason, to: null } })) : openAction(action, given));
  return h("button", { type: "button", class: style, "aria-haspopup": "dialog", "aria-disabled": reason ? "true" : null, title: reason || null, disabled: refusal === null, onclick },
    words, h("span", { class: "hidden" }, ` ${Object.values(given)[0] ?? ""}`), " …", reason && h("span", { class: "hidden" }, ` ${reason}`));
}

function openAction(action, given) {
  const { title, fields } = ACTIONS[action];
  const dialog = document.createElement("dialog");
  dialog.className = "action";
  dialog.setAttribute("aria-labelledby", "action-title");
  const state = { values: {}, plan: null, error: null, busy: false, typed: "" };

  const show = ({ focus = false } = {}) => {
    patch(dialog, [
      h("h2", { id: "action-title", tabindex: "-1" }, name(title(given))),
      h("div", { key: "error", role: "alert" }, state.error && failure(state.error)),
      state.plan ? confirmation() : fields.length ? form() : h("div", { key: "wait", class: "row end" }, !state.error && h("p", {}, "Planning…"), cancel()),
    ]);
    if (focus) dialog.querySelector("#action-title").focus();
  };
  const cancel = () => h("button", { type: "button", disabled: state.busy, onclick: () => dialog.close() }, state.plan?.button || (!state.plan && fields.length) ? "Cancel" : "Close");

  const form = () => h("form", { key: "form", onsubmit: onPlan },
    fields.map((field) => input(field)),
    h("div", { class: "row end" }, cancel(), h("button", { class: "primary", disabled: state.busy }, state.busy ? "Planning…" : "Show the effect")));

  const input = ({ name, label, kind, hint, required }) => h("div", { class: "field" },
    h("label", { for: `field-${name}` }, label),
    h(kind === "settings" ? "textarea" : "input", {
      id: `field-${name}`, name, required: required ?? false, value: state.values[name] ?? "", autocomplete: "off", spellcheck: "false",
      type: kind === "settings" ? null : kind === "number" ? "number" : "text", min: kind === "number" ? "1" : null,
      "aria-describedby": hint ? `hint-${name}` : null, oninput: (event) => (state.values[name] = event.target.value) }),
    hint && h("p", { class: "quiet", id: `hint-${name}` }, hint));

  const confirmation = () => {
    const { effect, rows, columns, typed, button } = state.plan;
    const isNumber = (place) => rows.every((row) => row[place] === null || typeof row[place] === "number");
    const isConfirmed = !typed || state.typed === typed;
    return h("form", { key: "plan", onsubmit: onApply },
      h("p", { id: "effect" }, effect),
      rows.length > 0 && table("Effect", columns.map((each, place) => [each, place && isNumber(place) ? "number" : ""]), rows.map((row, at) => h("tr", { key: String(at) },
        row.map((cell, place) => h(place ? "td" : "th", place ? { class: isNumber(place) ? "number" : null } : { scope: "row" }, shown(cell)))))),
      typed && h("div", { class: "field" }, h("label", { for: "typed" }, "Type ", h("code", {}, typed), " to confirm"),
        h("input", { id: "typed", autocomplete: "off", spellcheck: "false", value: state.typed, oninput: (event) => { state.typed = event.target.value; show(); } })),
      h("div", { class: "row end" },
        fields.length > 0 && h("button", { type: "button", disabled: state.busy, onclick: () => { state.plan = null; show({ focus: true }); } }, "Back"),
        cancel(),
        button && h("button", { class: SAFE.has(action) ? "primary" : "danger", "aria-describedby": "effect", disabled: state.busy || !isConfirmed }, state.busy ? "Working…" : button)));
  };

  const run = async (call) => {
    if (state.busy) return;
    [state.busy, state.error] = [true, null];
    show();
    try {
      await call();
    } catch (error) {
      state.error = error;
      state.plan = error.plan ?? null;
      state.typed = "";
    }
    state.busy = false;
    if (dialog.isConnected) show({ focus: true });
  };
  const plan = () => run(async () => {
    const body = { action, ...given };
    for (const { name, kind } of fields) {
      const text = (state.values[name] ?? "").trim();
      if (text) body[name] = PARSE[kind]?.(text) ?? text;
    }
    state.plan = await post("/api/plan", body);
  });
  const onPlan = (event) => {
    event.preventDefault();
    plan();
  };
  const onApply = (event) => {
    event.preventDefault();
    run(async () => {
      const { outcome } = await post("/api/apply", { token: state.plan.token });
      dialog.close();
      announce(outcome);
      const to = action === "delete-topic" ? "/topics" : null;
      document.dispatchEvent(new CustomEvent("outcome", { detail: { outcome, to } }));
    });
  };

  dialog.oncancel = (event) => state.busy && event.preventDefault();
  dialog.onclose = () => dialog.remove();
  document.body.append(dialog);
  show();
  dialog.showModal();
  if (!fields.length) plan();
}

/** An error, and whether the action had an effect. */
function failure(error) {
  const effect = {
    no: "Nothing was changed.",
    unknown: "The action may have been applied. Check the present state before you repeat it.",
  }[error.details?.applied];
  return h("div", { class: "notice bad" },
    h("p", {}, h("strong", {}, sentence(error.message, error.details)), error.hint && [" ", remedy(error.hint, error.details)]),
    effect && h("p", {}, effect), h("p", { class: "quiet" }, h("code", {}, error.code)));
}
