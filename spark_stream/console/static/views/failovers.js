// Failovers: the changes of leaders, and the records that were rolled back.

import { h } from "../dom.js";
import { ago, count, counted } from "../format.js";
import { empty, heading, link, section, shownPart, table } from "../widgets.js";

export const title = () => "Failovers";
export const parts = ["cluster", "failovers"];

export function render({ store }) {
  return [
    heading("Failovers"),
    h("p", { class: "lead" }, "When a leader dies, an in-sync replica becomes the leader. When the old leader returns, records that only it had are rolled back. Only read_uncommitted can have shown them."),
    shownPart(store, "cluster", (cluster) => [section("Rolled back", cluster.rolled_back.length
      ? rolledBack(cluster.rolled_back)
      : empty("No running broker has rolled back records since its start.")),
    section("Failovers", shownPart(store, "failovers", (all) => all.length
      ? [h("p", { class: "quiet" }, "One entry for each previous leader and time, with all of its partitions. The log has the time and the first offset of a leader epoch with records. Leaders are shown if this console has observed them. The log file of a broker shows why it stopped."), all.map(failover)]
      : empty("All partitions are in their first leader epoch.")))]),
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

const REASONS = {
  died: (each) => `Broker ${each.before} died`,
  restarted: (each) => `Broker ${each.before} stopped, and was restarted later`,
  reelected: (each) => `Broker ${each.before} became the leader again: it restarted, or its lease had expired`,
  moved: (each) => `Leaders moved from broker ${each.before}, which continued to run`,
  unknown: () => "The previous leader was not observed",
};

/** A failover as one line, which opens to all of its partitions. */
function failover(each, at) {
  const heirs = new Map();
  for (const one of each.changes) if (one.leader !== null && one.leader !== one.before) heirs.set(one.leader, (heirs.get(one.leader) ?? 0) + 1);
  const taken = [...heirs].sort().map(([broker, many]) => `broker ${broker} leads ${many}`).join(", ");
  const columns = [["Partition", ""], ["When", ""], ["New leader", ""], ["From offset", "number"], ["Leader epoch", "number"]];
  const last = each.changes.at(-1);
  return h("details", { class: "failover", key: `${each.before} ${last.topic} ${last.partition} ${last.epoch}`, open: at === 0 },
    h("summary", {}, h("strong", {}, `${REASONS[each.reason](each)}: ${counted(each.changes.length, "partition")}`), ", ",
      h("span", { class: "age" }, each.last_ms === null ? "time not observed" : ago(each.last_ms), taken && `. ${taken[0].toUpperCase()}${taken.slice(1)}.`)),
    table(`Partitions of the failover from ${each.before ?? "an unknown leader"}, ${at + 1}`, columns, each.changes.map((one) => h("tr", { key: `${one.topic} ${one.partition} ${one.epoch}` },
      h("th", { scope: "row" }, where(one)), h("td", {}, one.began_ms === null ? h("span", { class: "quiet" }, "not observed") : ago(one.began_ms)), h("td", {}, led(one.leader)),
      h("td", { class: "number" }, one.offset === null ? "no records" : count(one.offset)), h("td", { class: "number" }, count(one.epoch))))));
}
