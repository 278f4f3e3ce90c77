// What failovers did: who began to lead where, and which records they rolled back.

import { h } from "../dom.js";
import { ago, count, counted } from "../format.js";
import { empty, heading, link, section, shownPart, table } from "../widgets.js";

export const title = () => "Failovers";
export const parts = ["cluster", "topics"];

export function render({ store }) {
  return [
    heading("Failovers"),
    h("p", { class: "lead" }, "When a leader dies, an in-sync replica leads on. Records that only the old leader had are rolled back when it returns: only read_uncommitted can have shown them."),
    section("Rolled back", shownPart(store, "cluster", (cluster) => cluster.rolled_back.length
      ? rolledBack(cluster.rolled_back)
      : empty("No running broker has rolled anything back since it started."))),
    section("Changes of leaders", shownPart(store, "topics", (value) => value.leader_changes.length
      ? changes(value.leader_changes)
      : empty("Every partition is still led in its first epoch."))),
  ];
}

const where = (each) => link(`/topics/${encodeURIComponent(each.topic)}/${each.partition}`, `${each.topic}/${each.partition}`);

/** A leader, as far as it is known. @param {string | null} broker */
export function led(broker) {
  return broker === null ? h("span", { class: "quiet" }, "not seen") : `broker ${broker}`;
}

function rolledBack(all) {
  const columns = [["Partition", ""], ["When", ""], ["At broker", ""], ["Records", "number"], ["Offsets", "number"], ["Leader epoch", "number"], ["What they were", ""]];
  return table("Records that were rolled back", columns, all.map((each) => h("tr", { key: `${each.broker} ${each.topic} ${each.partition} ${each.at_ms}` },
    h("th", { scope: "row" }, where(each)), h("td", {}, ago(each.at_ms)), h("td", {}, `broker ${each.broker}`),
    h("td", { class: "number" }, count(each.end - each.start)),
    h("td", { class: "number" }, `${count(each.start)} to ${count(each.end - 1)}`), h("td", { class: "number" }, count(each.leader_epoch)),
    h("td", { class: each.were_committed ? "bad-text" : "" }, each.were_committed ? "replicated: an unclean election lost them" : "not replicated"))));
}

function changes(all) {
  const columns = [["Partition", ""], ["When", ""], ["Led before", ""], ["Leads since", ""], ["From offset", "number"], ["Leader epoch", "number"]];
  return [h("p", { class: "quiet" }, `The latest ${counted(all.length, "change")}, one for each leader epoch. The log has the time and the first offset of an epoch with records. Leaders are shown as far as this console has seen them. The log file of a broker has the reason why it stopped.`),
    table("Changes of leaders", columns, all.map((each) => h("tr", { key: `${each.topic} ${each.partition} ${each.epoch}` },
      h("th", { scope: "row" }, where(each)), h("td", {}, each.began_ms === null ? h("span", { class: "quiet" }, "not seen") : ago(each.began_ms)), h("td", {}, led(each.before)), h("td", {}, each.leader !== null && each.leader === each.before ? `${led(each.leader)} again: it was started anew, or had lost its lease` : led(each.leader)),
      h("td", { class: "number" }, each.offset === null ? "no records" : count(each.offset)), h("td", { class: "number" }, count(each.epoch)))))];
}
