// All transactions: their states, their owners, and the records that they hold back.

import { actionButton } from "../actions.js";
import { h } from "../dom.js";
import { ago, counted, duration, span } from "../format.js";
import { badge, empty, heading, holdsClass, link, name, section, shownPart, table } from "../widgets.js";

export const title = () => "Transactions";
export const parts = ["transactions"];

const UNFINISHED = ["open", "committing", "aborting"];

export function render({ store }) {
  return [
    heading("Transactions"),
    shownPart(store, "transactions", (all) => {
      const open = all.filter((each) => UNFINISHED.includes(each.state));
      const done = all.filter((each) => !UNFINISHED.includes(each.state));
      return [
        section("Open", open.length ? openTable(open, store) : none(store)),
        section("Last transaction of each id", done.length ? doneTable(done) : empty(open.length ? "Every transactional id has an open transaction." : "No transactional id has started a transaction yet.", "The last transaction of an id appears here while it has no open transaction.")),
      ];
    }),
  ];
}

/** The text without open transactions, now or at the last read of the list. @param {any} store */
function none(store) {
  if (store.parts.transactions.error) return empty("No transaction was open when the list was last read.", "The page Consumers shows readers that wait for a transaction.");
  return empty("There are no open transactions.", "read_committed shows all replicated records.");
}

function openTable(open, store) {
  const columns = [["Transactional id", ""], ["State", ""], ["Holds back", "number"], ["Open for", "number"], ["Deadline", "number"], ["Partitions", ""], ["Owner", ""], ["", ""]];
  return table("Open transactions", columns, open.map((each) => {
    const left = (each.deadline_ms - Date.now()) / 1000;
    return h("tr", { key: each.transactional_id },
      h("th", { scope: "row" }, name(each.transactional_id)),
      h("td", {}, badge(each.state)),
      h("td", { class: `number${holdsClass(store, each)}` }, each.held_back ? counted(each.held_back, "record") : "none"),
      h("td", { class: "number" }, duration((Date.now() - each.began_ms) / 1000)),
      h("td", { class: `number${left < 0 ? " bad-text" : ""}` }, left < 0 ? `${duration(-left)} ago` : `in ${duration(left)}`),
      h("td", {}, places(each)),
      h("td", {}, owner(each)),
      h("td", {}, abortButton(each, store.session)));
  }));
}

function places(each) {
  if (!each.partitions.length) return h("span", { class: "quiet" }, "none yet");
  return each.partitions.slice(0, 8).flatMap((at, number) => [number > 0 && ", ", link(`/topics/${encodeURIComponent(at.topic)}/${at.partition}`, `${at.topic}/${at.partition}`)])
    .concat(each.partitions.length > 8 ? [` and ${each.partitions.length - 8} more`] : []);
}

function owner(each) {
  const words = [each.principal, (each.query_name || each.query) && `query ${each.query_name || each.query}`].filter(Boolean).join(", ");
  return words || h("span", { class: "quiet", title: "Only clusters with authentication have owners of transactions" }, "unknown");
}

function doneTable(done) {
  const columns = [["Transactional id", ""], ["State", ""], ["Started", ""], ["Timeout", "number"], ["Owner", ""]];
  return table("The last transaction of each id", columns, done.map((each) => h("tr", { key: each.transactional_id },
    h("th", { scope: "row" }, name(each.transactional_id)), h("td", {}, badge(each.state)),
    h("td", {}, each.number < 0 ? "–" : ago(each.began_ms)),
    h("td", { class: "number" }, span(each.timeout_ms)), h("td", {}, owner(each)))));
}

/** A button that aborts a transaction after a confirmation, null in a read-only console. */
export function abortButton(each, session) {
  if (each.state !== "open") return null;
  return actionButton(session, "abort-transaction", "Abort", { transactional_id: each.transactional_id, number: each.number }, "danger");
}
