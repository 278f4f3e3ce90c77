// A partition as a line: its bounds, its replicas, and its open transactions.

import { h } from "../dom.js";
import { ago, bytes, count, counted, duration, rate } from "../format.js";
import { bigLine, scaleOf, stripe } from "../line.js";
import { empty, facts, heading, holdsClass, link, name as named, notice, problemsOf, section, sentence, shownPart, trouble } from "../widgets.js";
import { led } from "./failovers.js";
import { legend } from "./topics.js";
import { abortButton } from "./transactions.js";

export const title = (params) => `${params.topic}/${params.partition}`;
export const parts = ["cluster", "transactions"];
export const topic = (params) => params.topic;

export function render({ store, params }) {
  const name = encodeURIComponent(params.topic);
  const number = Number(params.partition);
  return [
    heading(`Partition ${params.partition}`, link(`/topics/${name}/records?partition=${params.partition}`, "Show records"),
      [link("/topics", "Topics"), " / ", link(`/topics/${name}`, params.topic)]),
    shownPart(store, "topic", (found) => {
      const each = found.partitions[number];
      if (each) return [notice(causes(store, `${params.topic}/${number}`, each.replicas)), shown(found, each, store)];
      return empty(`${params.topic} has no partition ${params.partition}.`, `It has ${counted(found.partitions.length, "partition")}, numbered from 0.`);
    }),
  ];
}

/** The problems of this partition and the dead brokers among its replicas, without the other partitions. */
function causes(store, place, replicas) {
  const dead = replicas.map((broker) => `dead_broker ${broker}`);
  return problemsOf(store, (one) => one.places.includes(place) || dead.includes(one.key)).map((one) => ({ ...one, places: [] }));
}

function shown(found, each, store) {
  const live = each.live;
  if (!live) {
    const why = each.error ?? { message: "its leader does not answer", hint: "If it is dead, another in-sync replica is elected within seconds." };
    return [trouble(why), facts(roles(each))];
  }
  const ends = each.replicas.filter((broker) => broker in live.followers).map((broker) => live.followers[broker]);
  const scale = scaleOf(live, ends);
  return [
    live.last_stable === null && h("div", { class: "notice wait" }, h("p", {}, "The new leader has not determined the high watermark yet. Readers wait for it, except under read_uncommitted.")),
    h("div", { class: "board" }, bigLine(live, scale), legend(),
      scale.broken && h("p", { class: "quiet" }, `The offsets before ${count(scale.from)} are compressed.`)),
    facts([
      ...roles(each),
      ["Records", count(live.log_end - live.log_start)],
      ["Not replicated", live.high_watermark === null ? null : counted(live.log_end - live.high_watermark, "record")],
      ["Held back", live.last_stable === null ? null : counted(live.high_watermark - live.last_stable, "record")],
      ["Written", rate(live.records_per_s)],
      ["Size", bytes(live.size)],
    ]),
    section("Replicas", h("ul", { class: "stripes" }, each.replicas.map((broker) => replica(broker, each, live, scale, refusal(store, broker, found.name, each.partition), isDead(store, broker))))),
    section("Open transactions", transactions(found, each, live, scale, store)),
    section("Leader epochs with records", live.epochs.length
      ? h("ul", { class: "plain" }, [...live.epochs].reverse().map((epoch) => h("li", { key: epoch.epoch },
        led(epoch.leader), ` since offset ${count(epoch.offset)} (leader epoch ${epoch.epoch}), `, ago(epoch.began_ms))))
      : empty("No leader has appended records yet.")),
  ];
}

function roles(each) {
  return [
    ["Leader", each.leader === null ? "none" : `broker ${each.leader}`],
    ["Leader epoch", count(each.leader_epoch)],
    ["Moves to", each.adding.length ? each.adding.join(", ") : null],
    ["Moves from", each.removing.length ? each.removing.join(", ") : null],
  ];
}

/** Whether a broker is dead, if the cluster is known. */
function isDead(store, broker) {
  return store.parts.cluster?.value?.brokers.find((each) => each.id === broker)?.alive === false;
}

/** The reason why the log of a replica refuses writes, or null. */
function refusal(store, broker, topic_, partition) {
  const code = store.parts.cluster?.value?.brokers.find((each) => each.id === broker)?.status?.refused[`${topic_}/${partition}`];
  return code === undefined ? null : code === "DISK_FULL" ? "its disk is full" : `its disk fails (${code})`;
}

function replica(broker, each, live, scale, refused, dead) {
  const leads = broker === each.leader;
  const end = leads ? live.log_end : live.followers[broker];
  const behind = end === undefined ? null : live.log_end - end;
  const state = leads ? "leader" : each.isr.includes(broker) ? "in sync" : "not in sync";
  const words = refused ? `refuses writes: ${refused}` : end === undefined ? dead ? `broker ${broker} is dead` : "not connected to the leader" : behind > 0 ? `${counted(behind, "record")} behind` : leads ? "" : "up to date";
  return h("li", { key: broker },
    h("div", { class: "stripe-name" }, h("strong", {}, `Broker ${broker}`), h("span", { class: `quiet${state === "not in sync" ? " bad-text" : ""}` }, ` ${state}`)),
    end === undefined
      ? h("div", { class: "bad-text" }, sentence(words))
      : stripe(scale, live.log_start, end, leads ? "leads" : each.isr.includes(broker) ? "follows" : "lags", `Broker ${broker} ends at ${count(end)}`),
    h("div", { class: "stripe-value" }, end === undefined ? "" : `${count(end)} `, h("span", { class: refused ? "bad-text" : "quiet" }, end === undefined ? "" : words)));
}

function transactions(found, each, live, scale, store) {
  if (!live.open.length) return empty("There are no open transactions.", "read_committed shows all replicated records.");
  const known = new Map((store.parts.transactions?.value ?? []).map((one) => [one.number, one]));
  return h("ul", { class: "stripes" }, live.open.map((one) => {
    const facts_ = known.get(one.transaction);
    const age = facts_ ? duration((Date.now() - facts_.began_ms) / 1000) : "";
    return h("li", { key: one.transaction },
      h("div", { class: "stripe-name" },
        h("strong", {}, facts_ ? named(facts_.transactional_id) : `transaction ${one.transaction}`),
        h("span", { class: "quiet" }, facts_ ? ` ${facts_.principal ? `of ${facts_.principal}, ` : ""}open for ${age}` : " that is not in your list of transactions")),
      stripe(scale, one.first_offset, live.log_end, "open", `Open from offset ${count(one.first_offset)}`),
      h("div", { class: "stripe-value" }, `from ${count(one.first_offset)}, `,
        one.held_back > 0 && h("span", { class: holdsClass(store, facts_) }, `holds back ${counted(one.held_back, "record")} `),
        facts_ && abortButton(facts_, store.session)));
  }));
}
