"use strict";

/* Tables and pictures that are wider than the page scroll, also by keyboard. */
function letTheKeyboardScroll() {
  for (const each of document.querySelectorAll(".md-typeset__scrollwrap, .picture, p:has(> img)")) {
    if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
    else each.removeAttribute("tabindex");
  }
}

/* On a phone the style sheet makes a block of each row of three cells or more, except of numbers.
   The roles keep the table a table for screen readers. */
function nameTheCells() {
  for (const table of document.querySelectorAll("article table:not([class])")) {
    const heads = [...table.tHead.rows[0].cells].map((each) => each.textContent.trim());
    if (table.querySelector("[style*=right]")) table.dataset.numbers = "";
    if (heads.length < 3 || "numbers" in table.dataset) continue;
    table.dataset.stacked = "";
    table.role = "table";
    for (const row of table.rows) {
      row.role = "row";
      [...row.cells].forEach((cell, at) => {
        cell.role = cell.tagName === "TH" ? "columnheader" : "cell";
        cell.dataset.head = cell.textContent.trim() && heads[at];
      });
    }
  }
}

/* Lines break between words of code and at these places, not at its hyphens. */
const AFTER_A_FOLDER = /(\s+|(?<=[\w.]\/)(?=\w))/;
const IN_A_LAST_CELL = /(\s+|(?<=[\w.]\/|::|\w_)(?=\w))/;
const IN_MANY_COLUMNS = /(\s+|(?<=[\w.]\/|::|\w_|\w\.)(?=\w)|(?<=[a-z])(?=[A-Z]))/;

function breakTheCode() {
  for (const code of document.querySelectorAll("article :not(pre) > code")) {
    if (code.children.length) continue;
    const isInManyColumns = code.closest("table")?.rows[0].cells.length > 5;
    const places = isInManyColumns
      ? IN_MANY_COLUMNS
      : code.closest("td:last-child") ? IN_A_LAST_CELL : AFTER_A_FOLDER;
    const parts = code.textContent.split(places).map((part) => {
      if (!part) return document.createElement("wbr");
      if (!part.includes("-") || part.length > 30) return part;
      const whole = document.createElement("span");
      whole.className = "whole";
      whole.textContent = part;
      return whole;
    });
    code.replaceChildren(...parts);
  }
}

nameTheCells();
breakTheCode();
addEventListener("load", letTheKeyboardScroll);
addEventListener("resize", letTheKeyboardScroll);
