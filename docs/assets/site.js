"use strict";

/* Tables and pictures that are wider than the page scroll, also by keyboard. */
function letTheKeyboardScroll() {
  for (const each of document.querySelectorAll(".md-typeset__scrollwrap, .picture, p:has(> img)")) {
    if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
    else each.removeAttribute("tabindex");
  }
}

/* On a phone the style sheet makes a block of each row of four cells or more, except of numbers.
   The roles keep the table a table for screen readers. */
function nameTheCells() {
  for (const table of document.querySelectorAll("article table:not([class])")) {
    const heads = [...table.tHead.rows[0].cells].map((each) => each.textContent.trim());
    if (heads.length < 4 || table.querySelector("[style*=right]")) continue;
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

nameTheCells();
addEventListener("load", letTheKeyboardScroll);
addEventListener("resize", letTheKeyboardScroll);
