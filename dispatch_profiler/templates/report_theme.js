"use strict";
// Light or dark, as the system says or as the button of the page does. It stands first, before anything is drawn.

const THEMES = ["system", "light", "dark"];
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
let theme = "system";
try { theme = THEMES.includes(localStorage.theme) ? localStorage.theme : theme; } catch { /* storage is off */ }

let isPrinting = false; // paper is white
const isDark = () => !isPrinting && (theme === "dark" || (theme === "system" && prefersDark.matches));

function showTheme() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
}

function nextTheme() {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  try { localStorage.theme = theme; } catch { /* it lasts as long as the page */ }
  showTheme();
}

showTheme();
