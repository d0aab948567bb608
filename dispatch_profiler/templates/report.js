// The page: tables first, then each figure when it comes into view.

const DATA = JSON.parse(document.getElementById("data").textContent);
const WRONG = (record) => !["SUCCESS", "Not verified", "Not supported"].includes(record.verdict);
// Also what was to be verified and could not be.
const FAILED = (record) => WRONG(record) || (record.verdict === "Not verified" && record.reason !== "");
const number = (value) => (typeof value === "number" ? value : null);
const times = (value) => (value === null ? "" : `${value.toFixed(2)}x`);
const percent = (value) => (value === null ? "" : `${(100 * value).toFixed(1)} %`);
const median = (index) => (index === null || index === undefined ? null : number(DATA.records[index].derived.median_ms));
const ratio = (above, below) => (above === null || below === null || below === 0 ? null : above / below);
const byId = (id) => document.getElementById(id);

const GROUP_OF = new Map();
const SPEED_OF = new Map(); // [speed relative to the default, the same with its interval as text]
DATA.groups.forEach((group, at) => group.entries.forEach((index, place) => {
  GROUP_OF.set(index, at);
  SPEED_OF.set(index, group.speeds[place] || [null, ""]);
}));

// -- rows of the tables ---------------------------------------------------------------------------

function recordRow(record, index) {
  const group = DATA.groups[GROUP_OF.get(index)];
  const derived = record.derived || {};
  const measured = record.measurement || {};
  const interval = derived.interval_ms || [null, null];
  const values = {
    operation: group.label, configuration: record.configuration, provider: record.provider,
    verdict: record.verdict, reason: record.reason,
    ms: number(derived.median_ms), low: number(interval[0]), high: number(interval[1]),
    min: number(derived.min_ms), p20: number(derived.p20_ms), p80: number(derived.p80_ms),
    gflops: number(derived.gflops),
    vs_default: SPEED_OF.get(index)[0], vs_text: SPEED_OF.get(index)[1],
    of_limit: record.limit_ms > 0 ? ratio(record.limit_ms, number(derived.median_ms)) : null,
    samples: measured.samples_ms ? measured.samples_ms.length : null,
    executions: measured.executions ?? null, mode: measured.mode ?? "", ended_by: measured.ended_by ?? "",
    warnings: (measured.warnings || []).join("; "), reproduce: record.reproduce,
  };
  return { index, values, search: searchable(values) };
}

const ms = (key, title) => ({ key, title, number: true });
const RECORD_COLUMNS = [
  { key: "operation", title: "operation", name: true },
  { key: "configuration", title: "configuration", name: true },
  { key: "provider", title: "provider" }, { key: "verdict", title: "verification" },
  ms("ms", "median ms"), ms("low", "interval from"), ms("high", "to ms"),
  { key: "gflops", title: "GFLOP/s", number: true, down: true },
  { key: "vs_default", title: "vs default", number: true, down: true, show: (value, row) => row.values.vs_text },
  { key: "of_limit", title: "% of peak", number: true, down: true, show: percent },
  ms("min", "min ms"), ms("p20", "p20 ms"), ms("p80", "p80 ms"),
  { key: "samples", title: "samples", number: true }, { key: "executions", title: "executions", number: true },
  { key: "mode", title: "mode" }, { key: "ended_by", title: "ended by" }, { key: "warnings", title: "warnings" },
];
const FAILURE_COLUMNS = [
  { key: "verdict", title: "verification" }, { key: "reason", title: "reason", wrap: true },
  { key: "operation", title: "operation", name: true },
  { key: "configuration", title: "configuration", name: true }, { key: "provider", title: "provider" },
  { key: "reproduce", title: "reproduce", wrap: true },
];

// Columns that say something: one that is empty everywhere is left out.
const filled = (columns, rows) => columns.filter(({ key }) => rows.some(({ values }) => (values[key] ?? "") !== ""));

function groupRow(group, index) {
  const best = group.best === null ? null : DATA.records[group.best];
  const any = DATA.records[group.entries[0]];
  const values = {
    operation: group.label, kind: any.op_kind.replace("OperationKind.", ""),
    gflop: number(any.flops) / 1e9, mbytes: number(any.bytes) / 1e6,
    default: median(group.default), best: median(group.best), gain: ratio(median(group.default), median(group.best)),
    gflops: best ? number(best.derived.gflops) : null, winner: best ? best.configuration : "",
    dispatches: group.entries.length, failures: group.entries.filter((i) => FAILED(DATA.records[i])).length,
  };
  DATA.providers.forEach((name, at) => { values[`provider${at}`] = median(group.providers[name]); });
  return { index, values, search: searchable(values) };
}

const GROUP_COLUMNS = [
  { key: "operation", title: "operation", name: true }, { key: "kind", title: "kind" },
  ms("gflop", "GFLOP"), ms("mbytes", "MB"), ms("default", "default ms"), ms("best", "best ms"),
  { key: "gain", title: "gain", number: true, down: true, show: times },
  ...DATA.providers.map((name, at) => ms(`provider${at}`, `${name} ms`)),
  { key: "gflops", title: "best GFLOP/s", number: true, down: true },
  { key: "winner", title: "best configuration", name: true },
  { key: "dispatches", title: "dispatches", number: true, down: true },
  { key: "failures", title: "failures", number: true, down: true },
];

// -- figures --------------------------------------------------------------------------------------

let plotly = null;

// It lies in the page compressed, so that the tables are there before anybody reads it.
function loadPlotly() {
  plotly ??= (async () => {
    const packed = atob(byId("plotly-source").textContent);
    const bytes = new Uint8Array(packed.length);
    for (let at = 0; at < packed.length; at++) bytes[at] = packed.charCodeAt(at);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const source = new Blob([await new Response(stream).blob()], { type: "text/javascript" });
    const src = URL.createObjectURL(source); // read on another thread, while the tables can be used
    await new Promise((onload, onerror) => document.head.append(element("script", { src, onload, onerror })));
    return window.Plotly;
  })();
  return plotly;
}

const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function hover(index) {
  if (index === null) return "";
  const record = DATA.records[index];
  const lines = [DATA.groups[GROUP_OF.get(index)].label, record.configuration];
  if (record.provider !== "IREE Codegen") lines.push(record.provider);
  const { values } = recordRow(record, index);
  if (values.ms === null) lines.push(`${record.verdict}: ${record.reason.slice(0, 120)}`);
  else lines.push(`${digits(values.ms)} ms (${digits(values.low)} to ${digits(values.high)}), ${digits(values.gflops)} GFLOP/s`);
  if (values.vs_default !== null) lines.push(`${values.vs_text} of the default's speed`);
  return lines.map(escaped).join("<br>");
}

// What a figure leaves to the records: texts by their number, and samples.
function completed(trace) {
  const deep = (value) => (Array.isArray(value) ? value.map(deep) : hover(value));
  const made = { ...trace };
  if (trace.customdata) made.text = deep(trace.customdata);
  const owners = trace.meta && trace.meta.samples_of;
  if (owners) {
    const samples = owners.map((index) => DATA.records[index].measurement.samples_ms);
    made.x = samples.flat();
    made.y = samples.flatMap((each, row) => each.map(() => row));
    made.marker = { ...trace.marker, color: samples.flatMap((each, row) => each.map(() => trace.meta.colours[row])) };
  }
  return made;
}

function saveButtons(place, name) {
  const save = (format) => {
    const button = element("button", { type: "button", textContent: format.toUpperCase(), title: `save as ${format.toUpperCase()}` });
    const size = { width: place.clientWidth, height: place.clientHeight };
    button.addEventListener("click", () => window.Plotly.downloadImage(place, { format, filename: name, scale: format === "png" ? 3 : 1, ...size }));
    return button;
  };
  return element("span", { className: "save" }, save("svg"), " ", save("png"));
}

async function plot(place, figure) {
  const library = await loadPlotly();
  if (place.figure !== figure) return; // another was asked for meanwhile
  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "toImage"] };
  await library.react(place, figure.data.map(completed), structuredClone(figure.layout), config);
  place.querySelector(".save")?.remove();
  place.append(saveButtons(place, place.id));
  if (place.removeAllListeners) place.removeAllListeners("plotly_click");
  place.on("plotly_click", ({ points }) => {
    const index = points[0].customdata;
    if (typeof index === "number") showDetails(index);
  });
  place.dataset.drawn = "yes";
}

// One figure at a time, and the browser shows each before the next is begun.
let waiting = Promise.resolve();
const pause = () => new Promise((done) => setTimeout(done));
const views = new IntersectionObserver((seen) => {
  for (const { isIntersecting, target } of seen) {
    if (!isIntersecting) continue;
    views.unobserve(target);
    waiting = waiting.then(() => plot(target, target.figure)).then(pause).catch((error) => {
      target.textContent = `This browser cannot draw the figure: ${error}`;
    });
  }
}, { rootMargin: "200px" });

function place(id, figure) {
  const target = byId(id);
  const box = target.closest(".needs-figure");
  if (box) box.hidden = figure === null;
  target.figure = figure;
  delete target.dataset.drawn;
  views.unobserve(target);
  if (figure === null) return;
  target.style.minHeight = `${figure.layout.height}px`;
  views.observe(target);
}

// -- details of a record --------------------------------------------------------------------------

function flat(value, name, found) {
  const nested = value !== null && typeof value === "object";
  if (!nested) found.push([name, value === null ? "none" : String(value)]);
  else if (Array.isArray(value)) found.push([name, value.length ? value.map(String).join(", ") : "none"]);
  else for (const [key, each] of Object.entries(value)) flat(each, name ? `${name}.${key}` : key, found);
  return found;
}

function whole(index) {
  const record = { ...DATA.records[index] };
  for (const [name, pool] of Object.entries(DATA.shared)) record[name] = pool[record[name]];
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
  const dialog = byId("details");
  dialog.dataset.index = index;
  dialog.querySelector("h2").textContent = record.dispatch;
  const rows = flat(record, "", []).flatMap(([name, text]) => [
    element("dt", { textContent: name }), element("dd", { textContent: text })]);
  dialog.querySelector("dl").replaceChildren(...rows);
  if (!dialog.open) dialog.showModal();
  const figure = inOrder(record);
  byId("in-order").hidden = figure === null;
  place("in-order", figure);
}

// -- start ----------------------------------------------------------------------------------------

function start() {
  if (DATA.roofline) loadPlotly().catch(() => {}); // meanwhile; who draws with it tells if it fails
  const rows = DATA.records.map(recordRow);
  const failed = (row) => FAILED(DATA.records[row.index]);
  const hint = "filter: words, or for example gflops>100";
  const columns = filled(RECORD_COLUMNS, rows);
  const configurations = new DataTable(byId("configurations-table"), columns, [],
    { choose: showDetails, failed, sort: { key: "ms", sign: 1 }, hint });
  const groups = DATA.groups.map(groupRow);
  const select = byId("operation");
  const choose = (at) => {
    const group = at === null ? null : DATA.groups[at];
    const shown = group === null ? rows : group.entries.map((index) => rows[index]);
    configurations.show(shown, group === null ? columns : columns.filter(({ key }) => key !== "operation"));
    place("heat-map", group && group.heat_map);
    place("samples", group && group.samples);
    operations.choosing(at);
    select.value = at === null ? "" : String(at);
  };
  const operations = new DataTable(byId("operations-table"), filled(GROUP_COLUMNS, groups), groups, {
    choose: (at) => { choose(at); byId("configurations").scrollIntoView(); },
    sort: { key: "gain", sign: -1 }, hint: "filter: words, or for example gain>1.1" });
  select.append(element("option", { value: "", textContent: `all ${DATA.groups.length} operations` }));
  DATA.groups.forEach((group, at) => select.append(element("option", { value: at, textContent: group.label })));
  select.addEventListener("change", () => choose(select.value === "" ? null : Number(select.value)));
  const failures = byId("failures-table");
  const tables = [operations, configurations];
  if (failures) {
    const found = rows.filter(failed);
    tables.push(new DataTable(failures, filled(FAILURE_COLUMNS, found), found,
      { choose: showDetails, sort: { key: "verdict", sign: 1 }, hint: "filter: words" }));
  }
  choose(0);
  place("roofline", DATA.roofline);
  place("comparison", DATA.comparison);
  window.addEventListener("beforeprint", () => tables.forEach((table) => table.drawAll()));
  document.documentElement.dataset.ready = "yes";
}

if (DATA.records.length) start();
