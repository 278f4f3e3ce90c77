"use strict";

/* Tables and pictures that are wider than the page scroll, also by keyboard. */
function letTheKeyboardScroll() {
  for (const each of document.querySelectorAll(".md-typeset__scrollwrap, .picture")) {
    if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
    else each.removeAttribute("tabindex");
  }
}

addEventListener("load", letTheKeyboardScroll);
addEventListener("resize", letTheKeyboardScroll);
