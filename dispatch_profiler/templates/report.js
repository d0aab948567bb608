// The page: first the tables, then each figure when it becomes visible.

const WRONG = (record) => !["SUCCESS", "Not verified", "Not supported"].includes(record.verdict);
// Includes results that could not be verified.
const FAILED = (record) => WRONG(record) || (record.verdict === "Not verified" && record.reason !== "");
const median = (index) => (index === null || index === undefined ? null : number(DATA.records[index].derived.median_ms));

// The first group of each record; a library's record may be in several.
const GROUP_OF = new Map();
DATA.groups.forEach((group, at) => {
  group.speedups = new Map(group.entries.map((index, position) => [index, group.vs_default[position]]));
  group.entries.forEach((index) => GROUP_OF.has(index) || GROUP_OF.set(index, at));
});

// -- rows of the tables ---------------------------------------------------------------------------

// A speedup, [value, low, high, whether the interval includes 1], as columns. A lower end of 0 is unknown.
function speedup(found) {
  const [value, low, high, unclear] = found || [null, null, null, false];
  return { vs_default: number(value), vs_low: number(low) || null, vs_high: number(high), is_unclear: unclear };
}
const showSpeedup = (value, { values }) => (value === null ? "" : `${values.is_unclear ? "~ " : ""}${times(value)}`);
const showInterval = (low, { values }) => (low === null || values.vs_high === null ? "" : `${times(low)} to ${times(values.vs_high)}`);
const speedupColumns = [
  { key: "vs_default", title: "vs default", number: true, down: true, show: showSpeedup, unclear: true },
  { key: "vs_low", title: "95 % interval", number: true, down: true, show: showInterval, unclear: true },
  extra({ key: "vs_high", title: "to", number: true, down: true, show: times, unclear: true }),
];

// What paired sampling said of a record: its speed relative to the default, or why there is none.
function confirmation({ confirmed }) {
  if (!confirmed) return { confirmed: null, confirmed_text: "" };
  const { outcome, low, high } = confirmed;
  const speed = number(confirmed.speed);
  const text = `${times(speed)}${range(low, high, times)}, ${outcome}`;
  return { confirmed: speed ?? outcome, confirmed_text: speed === null ? outcome : text };
}
const confirmedColumn = {
  key: "confirmed", title: "confirmed", number: true, down: true, folds: true, show: (_, { values }) => values.confirmed_text };

function recordRow(index, group = DATA.groups[GROUP_OF.get(index)]) {
  const record = DATA.records[index];
  const derived = record.derived || {};
  const measured = record.measurement || {};
  const [low, high] = (derived.interval_ms || [null, null]).map(number);
  const middle = number(derived.median_ms);
  const values = {
    operation: group.operation, run: DATA.runs[index] ?? group.run,
    configuration: record.configuration, provider: record.provider, verdict: record.verdict, reason: record.reason,
    ms: middle, low, high, reach: middle > 0 && high !== null ? Math.max(high - middle, middle - low) / middle : null,
    min: number(derived.min_ms), p20: number(derived.p20_ms), p80: number(derived.p80_ms),
    gflops: number(derived.gflops), ...speedup(group.speedups.get(index)), ...confirmation(record),
    of_limit: DATA.of_peak[index],
    samples: measured.samples_ms ? measured.samples_ms.length : null,
    executions: measured.executions ?? null, mode: measured.mode ?? "", ended_by: measured.ended_by ?? "",
    when: shared(record, "provenance").when, warnings: (measured.warnings || []).join("; "), reproduce: record.reproduce,
  };
  return { index, values, search: searchable(values) };
}

const shared = (record, name) => DATA.shared[name][record[name]];
const ms = (key, title) => ({ key, title, number: true });
const RECORD_COLUMNS = [
  { key: "operation", title: "operation", name: true }, { key: "run", title: "run" },
  { key: "configuration", title: "configuration", name: true },
  { key: "provider", title: "provider", folds: true }, { key: "verdict", title: "verification" },
  ms("ms", "median ms"), { key: "reach", title: "±95%", number: true, show: percent },
  { key: "gflops", title: "GFLOP/s", number: true, down: true }, ...speedupColumns, confirmedColumn,
  { key: "of_limit", title: "% of peak", number: true, down: true, show: percent },
  ...[ms("low", "low ms"), ms("high", "high ms"), ms("min", "min ms"), ms("p20", "p20 ms"), ms("p80", "p80 ms"),
    { key: "samples", title: "samples", number: true }, { key: "executions", title: "executions", number: true },
    { key: "mode", title: "mode" }, { key: "ended_by", title: "ended by" }, { key: "when", title: "time" },
    { key: "warnings", title: "warnings", wrap: true },
  ].map(extra),
];
const FAILURE_COLUMNS = [
  { key: "verdict", title: "verification" }, { key: "reason", title: "reason", wrap: true },
  { key: "operation", title: "operation", name: true }, { key: "run", title: "run" },
  { key: "configuration", title: "configuration", name: true }, { key: "provider", title: "provider" },
  { key: "reproduce", title: "reproduce", wrap: true },
];

// Omits columns that are empty in all rows, and the run if there is only one.
function filled(columns, rows) {
  const differ = new Set(rows.map(({ values }) => values.run)).size > 1;
  return columns.filter(({ key }) => (key !== "run" || differ) && rows.some(({ values }) => (values[key] ?? "") !== ""));
}

function groupRow(group, index) {
  const best = group.best === null ? null : DATA.records[group.best];
  const any = DATA.records[group.entries[0]];
  const values = {
    operation: group.operation, run: group.run, kind: any.op_kind.replace("OperationKind.", ""),
    gflop: number(any.flops) / 1e9, mbytes: number(any.bytes) / 1e6,
    default: median(group.default), best: median(group.best),
    ...speedup(best && group.speedups.get(group.best)), ...confirmation(best ?? {}),
    gflops: best ? number(best.derived.gflops) : null, of_limit: best ? DATA.of_peak[group.best] : null,
    winner: best ? best.configuration : "",
    dispatches: group.entries.length, failures: group.entries.filter((i) => FAILED(DATA.records[i])).length,
  };
  DATA.providers.forEach((name, at) => { values[`provider${at}`] = median(group.providers[name]); });
  return { index, values, search: searchable(values) };
}

const address = (at) => `#operation-${at + 1}`;
const GROUP_COLUMNS = [
  { key: "operation", title: "operation", name: true, link: ({ index }) => address(index) }, { key: "run", title: "run" },
  ...speedupColumns, confirmedColumn, ms("default", "default ms"), ms("best", "best ms"),
  { key: "gflops", title: "best GFLOP/s", number: true, down: true },
  { key: "of_limit", title: "% of peak", number: true, down: true, show: percent },
  ...DATA.providers.map((name, at) => ms(`provider${at}`, `${name} ms`)),
  { key: "winner", title: "best configuration", name: true },
  ...[{ key: "kind", title: "kind" }, ms("gflop", "GFLOP"), ms("mbytes", "MB"),
    { key: "dispatches", title: "dispatches", number: true, down: true }].map(extra),
  { key: "failures", title: "failures", number: true, down: true },
];

// -- hover texts of figures -----------------------------------------------------------------------

function hover(index) {
  if (index === null) return "";
  const record = DATA.records[index];
  const { values } = recordRow(index);
  const lines = [values.operation, values.run, record.configuration];
  if (record.provider !== "IREE Codegen") lines.push(record.provider);
  if (values.ms === null) lines.push(`${record.verdict}: ${record.reason.slice(0, 120)}`);
  else lines.push(`${digits(values.ms)} ms${range(values.low, values.high, digits)}, ${digits(values.gflops)} GFLOP/s`);
  if (values.vs_default !== null) lines.push(`${times(values.vs_default)} relative to the default${range(values.vs_low, values.vs_high, times)}`);
  return lines.filter(Boolean).map(escaped).join("<br>");
}

// -- details of a record --------------------------------------------------------------------------

function whole(index) {
  const record = { ...DATA.records[index] };
  for (const name of Object.keys(DATA.shared)) record[name] = shared(record, name);
  return record;
}

function inOrder(record) {
  const samples = record.measurement ? record.measurement.samples_ms : [];
  if (samples.length < 2 || !DATA.roofline) return null;
  const { layout } = structuredClone(DATA.roofline);
  const axis = (base, title) => ({ gridcolor: base.gridcolor, linecolor: base.linecolor, zeroline: false, automargin: true, title: { text: title } });
  layout.xaxis = axis(layout.xaxis, "sample, in the order taken");
  layout.yaxis = axis(layout.yaxis, "ms");
  Object.assign(layout, { height: 220, showlegend: false, margin: { l: 60, r: 20, t: 10, b: 45 } });
  const trace = { type: "scatter", mode: "lines+markers", x: samples.map((_, at) => at + 1), y: samples,
    line: { color: "#9AA5B1", width: 1 }, marker: { color: "#0072B2", size: 5 }, hovertemplate: "%{y} ms<extra></extra>" };
  return { data: [trace], layout };
}

function showDetails(index) {
  const record = whole(index);
  byId("details").dataset.index = index;
  openDetails(record.dispatch, flat(record, "", []));
  place("in-order", inOrder(record));
}

// -- start ----------------------------------------------------------------------------------------

function startScaling() {
  const kind = byId("scaling-kind"), size = byId("scaling-size");
  const options = (select, names) => select.append(...names.map((name) => element("option", { textContent: name, value: name })));
  options(kind, Object.keys(DATA.scaling));
  options(size, [...new Set(Object.values(DATA.scaling).flatMap(Object.keys))]);
  const show = () => place("scaling", (DATA.scaling[kind.value] || {})[size.value] || Object.values(DATA.scaling[kind.value] || {})[0]);
  for (const select of [kind, size]) select.addEventListener("change", show);
  show();
}

// Each form has a map of its own; the first is the form of the best configuration.
function showHeatMaps(maps) {
  const select = byId("heat-map-form");
  select.replaceChildren(...maps.map(([form], at) => element("option", { textContent: form, value: at })));
  select.closest("p").hidden = maps.length < 2;
  select.onchange = () => place("heat-map", (maps[select.value] || [])[1] ?? null);
  select.onchange();
}

function start() {
  if (DATA.roofline) loadPlotly().catch(() => {}); // in the background; drawing reports a failure
  const rows = DATA.records.map((_, index) => recordRow(index));
  const failed = (row) => FAILED(DATA.records[row.index]);
  const hint = "filter: words, or e.g. gflops>100";
  const columns = filled(RECORD_COLUMNS, rows);
  const configurations = new DataTable(byId("configurations-table"), columns, [],
    { choose: showDetails, failed, sort: { key: "ms", sign: 1 }, hint });
  const groups = DATA.groups.map(groupRow);
  const select = byId("operation");
  const choose = (at) => {
    const group = at === null ? null : DATA.groups[at];
    const shown = group === null ? rows : group.entries.map((index) => recordRow(index, group));
    configurations.show(shown, group === null ? columns : filled(columns.filter(({ key }) => key !== "operation"), shown));
    showHeatMaps(group ? group.heat_maps : []);
    place("samples", group && group.samples);
    operations.choosing(at);
    select.value = at === null ? "" : String(at);
  };
  const operations = new DataTable(byId("operations-table"), filled(GROUP_COLUMNS, groups), groups, {
    choose: (at) => { location.hash = address(at); },
    sort: { key: "vs_default", sign: -1 }, hint: "filter: words, or e.g. vs_default>1.1" });
  // `#operation-3` shows the third operation, so that Back and bookmarks work.
  const first = DATA.groups.length === 1 ? 0 : null;
  const follow = () => {
    if (location.hash === "") choose(first);
    const at = Number((location.hash.match(/^#operation-(\d+)$/) || [])[1]) - 1;
    if (!(at in DATA.groups)) return;
    choose(at);
    byId("configurations").scrollIntoView();
  };
  select.append(element("option", { value: "", textContent: DATA.groups.length === 1 ? "the only operation" : `all ${DATA.groups.length} operations` }));
  DATA.groups.forEach((group, at) => select.append(element("option", { value: at, textContent: group.label })));
  select.addEventListener("change", () => choose(select.value === "" ? null : Number(select.value)));
  const failures = byId("failures-table");
  const tables = [operations, configurations];
  if (failures) {
    const found = rows.filter(failed);
    tables.push(new DataTable(failures, filled(FAILURE_COLUMNS, found), found,
      { choose: showDetails, sort: { key: "verdict", sign: 1 }, hint: "filter: words" }));
  }
  choose(first);
  if (location.hash !== "") follow();
  window.addEventListener("hashchange", follow);
  place("comparison", DATA.comparison);
  startScaling();
  place("roofline", DATA.roofline);
  window.addEventListener("beforeprint", () => tables.forEach((table) => table.drawAll()));
  document.documentElement.dataset.ready = "yes";
}

startTheme();
if (DATA.records.length) start();
