"use strict";
// The theme: light or dark, chosen by the system or with the button. Runs before the page is drawn.

const THEMES = ["system", "light", "dark"];
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
let theme = "system";
try { theme = THEMES.includes(localStorage.theme) ? localStorage.theme : theme; } catch { /* storage is disabled */ }

let isPrinting = false; // print in light colours
const isDark = () => !isPrinting && (theme === "dark" || (theme === "system" && prefersDark.matches));

function showTheme() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
}

function nextTheme() {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  try { localStorage.theme = theme; } catch { /* the choice is not stored */ }
  showTheme();
}

showTheme();
