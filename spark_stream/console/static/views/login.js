// The login of the console. The credential goes to the console's server, which keeps it in memory.

import { post } from "../api.js";
import { h } from "../dom.js";
import { trouble } from "../widgets.js";

export function render({ store, rerender, begin }) {
  const submit = async (event) => {
    event.preventDefault();
    const given = Object.fromEntries([...new FormData(event.target).entries()].filter(([, value]) => value !== ""));
    store.login = { busy: true };
    rerender();
    try {
      await post("/api/login", given);
      store.login = {};
      await begin({ focus: true });
    } catch (error) {
      store.login = { error };
      rerender();
    }
  };
  const byToken = store.byToken ?? false;
  const toggle = () => {
    store.byToken = !byToken;
    rerender();
  };
  return h("main", { id: "main", class: "login" },
    h("h1", { id: "title", tabindex: "-1" }, "Log in"),
    h("p", { class: "quiet" }, "This cluster requires authentication. The console shows what your permissions allow."),
    store.over && h("div", { class: "notice wait", role: "status" }, h("p", {}, "Your session has expired. Log in again.")),
    store.login?.error && trouble(store.login.error),
    h("form", { onsubmit: submit },
      byToken
        ? h("label", { key: "token" }, "Token", h("input", { name: "token", type: "password", required: true, autocomplete: "off" }))
        : [h("label", { key: "user" }, "User", h("input", { name: "user", required: true, autocomplete: "username" })),
          h("label", { key: "password" }, "Password", h("input", { name: "password", type: "password", required: true, autocomplete: "current-password" }))],
      h("button", { class: "primary", disabled: store.login?.busy ?? false }, store.login?.busy ? "Logging in…" : "Log in"),
      h("button", { type: "button", class: "plain-button", onclick: toggle }, byToken ? "Use a password instead" : "Use a token instead")));
}
