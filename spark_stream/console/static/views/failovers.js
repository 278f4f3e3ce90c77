// Failovers: the changes of leaders, and the records that were rolled back.

import { h } from "../dom.js";
import { ago, count, counted } from "../format.js";
import { empty, heading, link, section, shownPart, table } from "../widgets.js";

export const title = () => "Failovers";
export const parts = ["cluster", "topics"];

export function render({ store }) {
  return [
    heading("Failovers"),
    h("p", { class: "lead" }, "When a leader dies, an in-sync replica becomes the leader. When the old leader returns, records that only it had are rolled back. Only read_uncommitted can have shown them."),
    section("Rolled back", shownPart(store, "cluster", (cluster) => cluster.rolled_back.length
      ? rolledBack(cluster.rolled_back)
      : empty("No running broker has rolled back records since its start."))),
    section("Changes of leaders", shownPart(store, "topics", (value) => value.leader_changes.length
      ? changes(value.leader_changes)
      : empty("All partitions are in their first leader epoch."))),
  ];
}

const where = (each) => link(`/topics/${encodeURIComponent(each.topic)}/${each.partition}`, `${each.topic}/${each.partition}`);

/** A leader, if the console has observed it. @param {string | null} broker */
export function led(broker) {
  return broker === null ? h("span", { class: "quiet" }, "not observed") : `broker ${broker}`;
}

function rolledBack(all) {
  const columns = [["Partition", ""], ["When", ""], ["At broker", ""], ["Records", "number"], ["Offsets", "number"], ["Leader epoch", "number"], ["State", ""]];
  return table("Records that were rolled back", columns, all.map((each) => h("tr", { key: `${each.broker} ${each.topic} ${each.partition} ${each.at_ms}` },
    h("th", { scope: "row" }, where(each)), h("td", {}, ago(each.at_ms)), h("td", {}, `broker ${each.broker}`),
    h("td", { class: "number" }, count(each.end - each.start)),
    h("td", { class: "number" }, `${count(each.start)} to ${count(each.end - 1)}`), h("td", { class: "number" }, count(each.leader_epoch)),
    h("td", { class: each.were_committed ? "bad-text" : "" }, each.were_committed ? "replicated: an unclean election lost them" : "not replicated"))));
}

function changes(all) {
  const columns = [["Partition", ""], ["When", ""], ["Previous leader", ""], ["New leader", ""], ["From offset", "number"], ["Leader epoch", "number"]];
  return [h("p", { class: "quiet" }, `The latest ${counted(all.length, "change")}, one for each leader epoch. The log has the time and the first offset of an epoch with records. Leaders are shown if this console has observed them. The log file of a broker shows why it stopped.`),
    table("Changes of leaders", columns, all.map((each) => h("tr", { key: `${each.topic} ${each.partition} ${each.epoch}` },
      h("th", { scope: "row" }, where(each)), h("td", {}, each.began_ms === null ? h("span", { class: "quiet" }, "not observed") : ago(each.began_ms)), h("td", {}, led(each.before)), h("td", {}, each.leader !== null && each.leader === each.before ? `${led(each.leader)} again: it restarted, or its lease had expired` : led(each.leader)),
      h("td", { class: "number" }, each.offset === null ? "no records" : count(each.offset)), h("td", { class: "number" }, count(each.epoch)))))];
}
