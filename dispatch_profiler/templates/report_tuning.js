// The page of a tuning: verdicts of all problems, and the search of one of them.

// -- texts ----------------------------------------------------------------------------------------

const ratio = ([value, low, high]) => `${times(number(value))} (${times(number(low)) || "?"} to ${times(number(high)) || "?"})`;

// Points are evaluations, or problems: -1 - p.
function hover(index) {
  const lines = index < 0 ? problemLines(DATA.problems[-1 - index]) : evaluationLines(DATA.evaluations[index]);
  return lines.filter(Boolean).map(escaped).join("<br>");
}

function problemLines(problem) {
  const share = number(problem.share);
  return [problem.name, problem.label, share === null ? "" : `${share.toFixed(1)} % of the workload`,
    problem.speedup ? ratio(problem.speedup) : "", `${problem.judgement}${problem.reason ? `: ${shorter(problem.reason)}` : ""}`];
}

function evaluationLines(found) {
  const time = found.ms === null ? shorter(found.reason)
    : `${digits(found.ms)} ms${range(found.low, found.high, digits)}, ${digits(found.gflops)} GFLOP/s`;
  return [`${found.number}: ${found.configuration}`, found.verdict, time,
    found.vs_default === null ? "" : `${times(found.vs_default)} relative to the default`,
    found.abandoned ? "abandoned: clearly slower than the best" : "",
    found.same_kernel_as ? `the same kernel as ${found.same_kernel_as}` : ""];
}

const shorter = (text) => (text.length > 120 ? `${text.slice(0, 119)}…` : text);

function showDetails(index) {
  if (index < 0) {
    location.hash = address(-1 - index);
    return;
  }
  const found = DATA.evaluations[index];
  const { problem, ...rest } = found;
  openDetails(found.configuration, flat({ problem: DATA.problems[problem].name, ...rest }, "", []));
}

// -- tables ---------------------------------------------------------------------------------------

const address = (at) => `#problem-${at + 1}`;
const plainNumber = (key, title, down = false, show = undefined) => ({ key, title, number: true, down, show });
const showInterval = (low, { values }) => (low === null || values.high === null ? "" : `${times(low)} to ${times(values.high)}`);
const VERDICT_COLUMNS = [
  { key: "name", title: "problem", link: ({ values }) => address(values.problem), below: ({ values }) => values.label },
  { key: "judgement", title: "judgement" },
  plainNumber("share", "share %", true, (value) => (value === null ? "" : value.toFixed(1))),
  plainNumber("speedup", "speedup", true, times), plainNumber("low", "95 % interval", true, showInterval),
  { key: "configuration", title: "configuration", name: true },
  plainNumber("reference_ms", "untuned ms"), plainNumber("tuned_ms", "tuned ms"), { key: "reason", title: "reason", wrap: true },
  ...[{ key: "reference", title: "compared with", name: true }, { key: "operation", title: "operation", name: true },
    plainNumber("high", "to", true, times), plainNumber("calls", "count", true), { key: "origin", title: "origin" }].map(extra),
];
const EVALUATION_COLUMNS = [
  plainNumber("number", "#"), { key: "configuration", title: "configuration", name: true },
  { key: "verdict", title: "verification" }, plainNumber("ms", "median ms"), plainNumber("gflops", "GFLOP/s", true),
  plainNumber("vs_default", "vs default", true, times), plainNumber("of_limit", "% of peak", true, percent),
  { key: "reason", title: "reason", wrap: true },
  ...[plainNumber("low", "low ms"), plainNumber("high", "high ms"), { key: "kind", title: "kind" },
    { key: "same_kernel_as", title: "same kernel as", name: true }].map(extra),
];

const tableRow = (values, index) => ({ index, values, search: searchable(values) });
const filled = (columns, rows) =>
  columns.filter(({ key }) => rows.some(({ values }) => (values[key] ?? "") !== ""));

// -- start ----------------------------------------------------------------------------------------

function startVerdicts() {
  const rows = DATA.finalists.map((found, index) => tableRow({ ...found, low: number(found.low), high: number(found.high) }, index));
  const failed = ({ values }) => values.group.startsWith("wrong");
  return new DataTable(byId("verdicts-table"), filled(VERDICT_COLUMNS, rows), rows, {
    choose: (at) => { location.hash = address(DATA.finalists[at].problem); }, failed,
    sort: { key: "share", sign: -1 }, hint: "filter: words, or e.g. speedup>1.1" });
}

function startSearches() {
  const field = byId("field"), select = byId("problem");
  const table = new DataTable(byId("evaluations-table"), EVALUATION_COLUMNS, [], {
    choose: showDetails, failed: ({ values }) => values.ms === null, sort: { key: "number", sign: 1 }, hint: "filter: words, or e.g. ms<0.5" });
  const showTiles = (problem) => place("tiles", problem.tiles[field.value] || null);
  const choose = (at) => {
    const problem = DATA.problems[at];
    select.value = String(at);
    const { judgement, reason, label, operation } = problem;
    const outcome = `${judgement}${problem.speedup ? `, ${ratio(problem.speedup)}` : ""}`;
    byId("verdict-of-problem").textContent = [label, outcome, reason].filter(Boolean).join(": ");
    byId("name-of-problem").textContent = operation;
    place("progress", problem.progress);
    field.replaceChildren(...Object.keys(problem.tiles).map((name) => element("option", { value: name, textContent: name.replaceAll("_", " ") })));
    showTiles(problem);
    const rows = DATA.evaluations.slice(problem.start, problem.start + problem.count).map((found, offset) => tableRow(found, problem.start + offset));
    table.show(rows, filled(EVALUATION_COLUMNS, rows));
  };
  field.addEventListener("change", () => showTiles(DATA.problems[Number(select.value)]));
  select.append(...DATA.problems.map(({ name, label }, at) => element("option", { value: at, textContent: `${name}: ${label}` })));
  // The address has the problem, so that Back and bookmarks work.
  select.addEventListener("change", () => { location.hash = address(Number(select.value)); });
  const follow = (scrolls = true) => {
    const at = Number((location.hash.match(/^#problem-(\d+)$/) || [])[1]) - 1;
    if (!(at in DATA.problems)) return false;
    choose(at);
    if (scrolls) byId("searches").scrollIntoView();
    return true;
  };
  window.addEventListener("hashchange", () => follow());
  if (!follow()) choose(0);
  return table;
}

startTheme();
if (byId("uplift")) place("uplift", DATA.uplift);  // a search alone has none
const tables = [startVerdicts()];
if (DATA.problems.length) tables.push(startSearches());
window.addEventListener("beforeprint", () => tables.forEach((table) => table.drawAll()));
document.documentElement.dataset.ready = "yes";
